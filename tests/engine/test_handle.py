import asyncio
import gc
import traceback
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from photonlite.engine import handle as handle_module
from photonlite.engine.handle import RequestHandle, TokenStream, _bell
from photonlite.errors import DeadlineError, EngineDiedError, ImageError, RequestCancelledError, TruncatedError
from photonlite.images.pool import PreparedImage
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.skills.encode import FixedGrammar
from tests.api.fakes import (
    GUARD,
    FakeEngine,
    Source,
    Threads,
    begun,
    completed,
    make_session,
    on_thread,
    prepared_image,
    request,
    task,
)

TOKENS = [Token(1), Token(2), Token(3)]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, GUARD))


async def settled() -> None:
    """Let other tasks run until they wait for something outside."""
    for _ in range(5):
        await asyncio.sleep(0)


# ---- completions


def test_a_completion_has_tokens_reason_metrics_and_the_size_of_the_image() -> None:
    engine = FakeEngine()
    image = prepared_image()
    handle = begun(engine, lambda: image)
    times = engine.sequences[0].times
    start = times.submitted
    times.admitted, times.first_token, times.finished = start + 1, start + 3, start + 7
    times.preprocess_s, times.encode_s, times.prefill_s = 0.0, 0.25, 0.5  # a busy machine prepares slowly

    engine.give(*TOKENS)
    engine.finish()
    done = handle.result()

    assert (done.tokens, done.finish_reason, done.picture_size) == (tuple(TOKENS), "stop", (6, 4))
    metrics = done.metrics
    assert (metrics.queue_s, metrics.time_to_first_token_s, metrics.decode_s) == pytest.approx((1, 3, 4))
    assert (metrics.encode_s, metrics.prefill_s) == (0.25, 0.5)
    assert (metrics.prompt_tokens, metrics.output_tokens) == (14, 3)
    assert handle.outcome() == (metrics, "stop")


def test_preprocessing_counts_what_this_request_waited_for() -> None:
    engine = FakeEngine()
    image = prepared_image()
    image.preprocess_s = 5.0  # by an earlier request
    handle = begun(engine, lambda: image)
    image.preprocess_s += 2.0  # cutting
    engine.finish()

    assert 2.0 <= handle.result().metrics.preprocess_s < 5.0
    assert handle.image is image


def test_an_answer_without_tokens_has_no_token_times() -> None:
    engine = FakeEngine()
    handle = begun(engine)
    engine.finish()

    metrics = handle.result().metrics

    assert (metrics.decode_s, metrics.time_to_first_token_s, metrics.queue_s) == (0, 0, 0)


def test_a_thread_waits_for_the_result() -> None:
    engine = FakeEngine()
    handle = begun(engine)
    waiting = on_thread(handle.result)
    engine.give(*TOKENS)
    assert not waiting.done()
    engine.finish()

    assert waiting.result(GUARD).tokens == tuple(TOKENS)


def test_a_coroutine_waits_for_the_result() -> None:
    async def main() -> Completion:
        engine = FakeEngine()
        handle = begun(engine)
        waiting = asyncio.ensure_future(completed(handle))
        await settled()
        assert not waiting.done()
        on_thread(lambda: (engine.give(*TOKENS), engine.finish()))
        return await waiting

    assert run(main()).tokens == tuple(TOKENS)


# ---- streams


def test_tokens_come_one_by_one_and_are_still_in_the_completion() -> None:
    engine = FakeEngine()
    handle = begun(engine)
    stream = TokenStream(handle)
    first = on_thread(lambda: next(stream))
    engine.give(TOKENS[0])
    assert first.result(GUARD) == TOKENS[0]
    engine.give(*TOKENS[1:])
    engine.finish()

    assert list(stream) == TOKENS[1:]
    assert list(stream) == []
    assert handle.result().tokens == tuple(TOKENS)


def test_coroutines_get_tokens_one_by_one_too() -> None:
    async def main() -> None:
        engine = FakeEngine()
        handle = begun(engine)
        stream = TokenStream(handle)
        first = asyncio.ensure_future(anext(stream))
        await settled()
        on_thread(lambda: engine.give(TOKENS[0]))
        assert await first == TOKENS[0]
        engine.give(*TOKENS[1:])
        engine.finish()
        assert [token async for token in stream] == TOKENS[1:]
        assert [token async for token in stream] == []

    run(main())


def test_no_token_is_missed_while_a_coroutine_goes_to_sleep() -> None:
    async def main() -> list[Token]:
        engine = FakeEngine()
        handle = begun(engine)
        stream = TokenStream(handle)
        many = [Token(n) for n in range(2000)]
        on_thread(lambda: (engine.give(*many), engine.finish()))
        return [token async for token in stream]

    assert [token.id for token in run(main())] == list(range(2000))


def test_a_token_that_arrives_just_before_a_coroutine_waits_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    def late() -> Any:
        engine.give(TOKENS[0])
        return _bell()

    async def main() -> Token:
        handle = begun(engine)
        stream = TokenStream(handle)
        monkeypatch.setattr("photonlite.engine.handle._bell", late)
        return await anext(stream)

    assert run(main()) == TOKENS[0]


@pytest.mark.parametrize(
    ("end", "error"),
    [(RequestHandle.expire, DeadlineError), (RequestHandle.cancel, RequestCancelledError)],
)
def test_a_stream_that_has_raised_gives_no_more_tokens(
    end: Callable[[RequestHandle], None], error: type[Exception]
) -> None:
    handle = RequestHandle(request(), deadline_s=GUARD)
    stream = TokenStream(handle)
    end(handle)
    for token in TOKENS:  # the engine commits steps before it sees that the request has ended
        handle.on_token(token)

    async def main() -> None:
        with pytest.raises(error):
            await anext(stream)

    for _ in TOKENS:
        with pytest.raises(error):
            next(stream)
        run(main())


def test_an_error_comes_after_the_tokens_before_it_for_every_reader() -> None:
    engine = FakeEngine()
    handle = begun(engine)
    stream = TokenStream(handle)
    engine.give(TOKENS[0])
    engine.finish(EngineDiedError("it stopped"))

    assert next(stream) == TOKENS[0]
    for _ in range(2):
        with pytest.raises(EngineDiedError, match="it stopped"):
            next(stream)
    with pytest.raises(EngineDiedError):
        run(anext(stream))  # type: ignore[arg-type]
    with pytest.raises(EngineDiedError):
        handle.result()


def test_one_error_that_ends_many_requests_is_raised_as_copies() -> None:
    engine, error = FakeEngine(), EngineDiedError("it stopped")
    error.__cause__ = cause = RuntimeError("no power")
    raised = []
    for _ in range(2):
        handle = begun(engine)
        engine.finish(error)
        with pytest.raises(EngineDiedError, match="it stopped") as found:
            handle.result()
        raised.append(found.value)

    assert len({id(one) for one in (*raised, error)}) == 3
    assert error.__traceback__ is None
    assert raised[0].__cause__ is cause


def test_an_error_of_a_plug_in_reaches_the_caller_unchanged_and_spares_the_engine() -> None:
    class Broken(FixedGrammar):
        @property
        def finish_reason(self) -> str:  # type: ignore[override]
            raise ZeroDivisionError

    engine = FakeEngine()
    handle = begun(engine, asked=Request("x", (), Broken(), 1, SamplingSettings()))
    engine.finish()

    with pytest.raises(ZeroDivisionError):
        handle.result()


def test_two_coroutines_that_read_one_stream_share_its_tokens_and_both_end() -> None:
    async def main() -> list[list[Token]]:
        engine = FakeEngine()
        handle = begun(engine)
        stream = TokenStream(handle)

        async def read() -> list[Token]:
            return [token async for token in stream]

        readers = [asyncio.ensure_future(read()) for _ in range(2)]
        await settled()
        engine.give(*TOKENS)
        engine.finish()
        return await asyncio.gather(*readers)

    assert sorted(token.id for tokens in run(main()) for token in tokens) == [1, 2, 3]


# ---- preparation


def test_a_broken_image_fails_the_request_before_it_is_submitted() -> None:
    def prepare() -> PreparedImage:
        raise ImageError("no image")

    engine = FakeEngine()
    handle = begun(engine, prepare)

    with pytest.raises(ImageError, match="no image"):
        handle.raise_error()
    assert engine.sequences == []


def test_an_error_of_a_callers_file_reaches_the_caller() -> None:
    class Panic(BaseException):
        pass

    def prepare() -> PreparedImage:
        raise Panic

    with pytest.raises(Panic):
        begun(FakeEngine(), prepare)
    threads = Threads()
    handle = make_session(FakeEngine(), threads).launch(task(image=Source(prepare)))
    threads.work()

    with pytest.raises(Panic):
        run(completed(handle))


def test_a_kept_error_keeps_no_local_variables_of_a_decoder_alive() -> None:
    class Pixels:
        pass

    held = []

    def decode() -> None:
        pixels = Pixels()
        held.append(weakref.ref(pixels))
        raise ValueError("truncated")

    def prepare() -> PreparedImage:
        try:
            decode()
        except ValueError as cause:
            raise ImageError("no image") from cause
        return prepared_image()

    handle = begun(FakeEngine(), prepare)
    with pytest.raises(ImageError) as kept:
        handle.result()

    assert held[0]() is None
    assert "in decode" in "".join(traceback.format_exception(kept.value))


def test_a_refusal_of_the_engine_reaches_the_caller() -> None:
    handle = begun(FakeEngine(refusal=EngineDiedError("it stopped")))

    with pytest.raises(EngineDiedError):
        handle.result()


def test_checking_an_open_request_raises_nothing() -> None:
    begun(FakeEngine()).raise_error()


def test_a_strict_answer_cut_short_before_its_stream_is_read_is_streamed_and_raises_at_its_end() -> None:
    handle = RequestHandle(replace(request(), strict=True), None)
    for token in TOKENS:
        handle.on_token(token)
    handle.finish(Completion(tuple(TOKENS), "length", ANY))

    handle.raise_error()
    stream = TokenStream(handle)
    assert [next(stream) for _ in TOKENS] == TOKENS
    with pytest.raises(TruncatedError):
        next(stream)


def test_a_request_cancelled_before_its_turn_is_neither_prepared_nor_submitted() -> None:
    engine, threads, image = FakeEngine(), Threads(), Source()
    handle = make_session(engine, threads).launch(task(image=image))
    handle.cancel()
    threads.work()

    assert (image.measured, image.prepared, engine.sequences) == (0, 0, [])
    with pytest.raises(RequestCancelledError):
        handle.result()


def test_a_request_cancelled_while_it_is_prepared_is_not_submitted() -> None:
    def prepare() -> PreparedImage:
        handle.cancel()
        return prepared_image()

    engine, threads = FakeEngine(), Threads()
    handle = make_session(engine, threads).launch(task(image=Source(prepare)))
    threads.work()

    assert engine.sequences == []


def test_a_request_cancelled_while_it_is_submitted_is_cancelled_in_the_engine() -> None:
    threads = Threads()
    engine = FakeEngine(on_submit=lambda sequence: handle.cancel())
    handle = make_session(engine, threads).launch(task())
    threads.work()

    assert engine.cancelled == engine.sequences != []


def test_a_deadline_includes_the_time_of_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, now = FakeEngine(), 100.0
    monkeypatch.setattr(handle_module.time, "perf_counter", lambda: now)

    def prepare() -> PreparedImage:
        nonlocal now
        now += 3.0
        return prepared_image()

    handle = begun(engine, prepare, 5.0)

    assert (engine.options["submitted"], engine.options["deadline_s"]) == (100.0, 5.0)
    assert handle.remaining == 2.0


# ---- giving up


def test_a_cancelled_request_ends_at_once_and_ignores_later_results() -> None:
    engine = FakeEngine()
    handle = begun(engine)
    engine.give(TOKENS[0])
    handle.cancel()
    TokenStream(handle).close()
    engine.finish()

    assert engine.cancelled == engine.sequences
    with pytest.raises(RequestCancelledError):
        handle.result()


def test_dropping_a_stream_cancels_its_request_though_the_engine_still_has_the_handle() -> None:
    engine = FakeEngine()
    gc.disable()  # it must not wait for the collector of cycles
    try:
        stream = TokenStream(begun(engine))
        engine.give(*TOKENS)
        next(stream)
        del stream
        assert engine.cancelled == engine.sequences
    finally:
        gc.enable()


def test_a_finished_request_is_not_cancelled_and_keeps_no_reference_to_the_engine() -> None:
    engine = FakeEngine()
    handle = begun(engine)
    engine.finish()
    handle.result()
    seen = weakref.ref(engine)
    handle.cancel()
    assert engine.cancelled == []
    del engine
    assert seen() is None


def test_a_failed_request_keeps_no_reference_to_the_engine() -> None:
    engine = FakeEngine(refusal=EngineDiedError("it stopped"))
    handle = begun(engine)
    with pytest.raises(EngineDiedError):
        handle.result()
    seen = weakref.ref(engine)
    del engine

    assert seen() is None


WAITS = [completed, lambda handle: anext(TokenStream(handle))]


@pytest.mark.parametrize("how", WAITS)
def test_cancelling_a_task_that_waits_cancels_the_request(how: Callable[[RequestHandle], Any]) -> None:
    async def main() -> FakeEngine:
        engine = FakeEngine()
        handle = begun(engine)  # held, so that it is not dropping it that cancels
        waiting = asyncio.ensure_future(how(handle))
        await settled()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine.cancelled == engine.sequences
        return engine

    engine = run(main())
    assert engine.cancelled == engine.sequences != []


def test_an_interrupted_thread_cancels_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    engine = FakeEngine()
    handle = begun(engine)
    monkeypatch.setattr("concurrent.futures.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.result()

    assert engine.cancelled == engine.sequences != []


def test_an_interrupted_reader_of_a_stream_cancels_it_too() -> None:
    class Interrupted:
        def get(self, timeout: float | None = None) -> Token:
            raise KeyboardInterrupt

        def put(self, token: Token | None) -> None: ...

    engine = FakeEngine()
    handle = begun(engine)
    stream = TokenStream(handle)
    handle.tokens = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(stream)

    assert engine.cancelled == engine.sequences != []


def test_a_closed_event_loop_does_not_disturb_the_engine() -> None:
    handle = RequestHandle(request())

    async def wait_and_leave() -> None:
        handle.bells.append(_bell()[1])

    asyncio.run(wait_and_leave())
    handle.on_token(TOKENS[0])

    assert handle.tokens.get() == TOKENS[0]


# ---- deadlines


@pytest.mark.parametrize("wait", [RequestHandle.result, lambda handle: next(TokenStream(handle))])
def test_waiting_ends_at_the_deadline_whatever_the_engine_does(wait: Callable[[RequestHandle], Any]) -> None:
    engine = FakeEngine()
    handle = begun(engine, deadline_s=GUARD)
    assert engine.options["deadline_s"] == GUARD
    handle.begun -= GUARD - 0.01

    with pytest.raises(DeadlineError, match=f"within {GUARD:g} s"):
        on_thread(lambda: wait(handle)).result(GUARD)


@pytest.mark.parametrize("deadline_s", [1e10, 1e300])
@pytest.mark.parametrize("wait", [RequestHandle.result, lambda handle: list(TokenStream(handle))])
def test_a_deadline_may_exceed_the_longest_lock_timeout(wait: Callable[[Any], Any], deadline_s: float) -> None:
    engine = FakeEngine()
    handle = begun(engine, deadline_s=deadline_s)
    waiting = on_thread(lambda: wait(handle))
    engine.finish()

    waiting.result(GUARD)
    assert handle.result().finish_reason is not None


@pytest.mark.parametrize("wait", WAITS)
def test_awaiting_ends_at_the_deadline_too(wait: Callable[[RequestHandle], Any]) -> None:
    async def main() -> None:
        await wait(begun(FakeEngine(), deadline_s=0.01))

    with pytest.raises(DeadlineError):
        run(main())


def test_a_request_whose_deadline_passes_during_preparation_is_not_submitted() -> None:
    engine = FakeEngine()
    handle = begun(engine, deadline_s=0.0)

    assert engine.sequences == []
    with pytest.raises(DeadlineError):
        handle.raise_error()


def test_an_image_is_not_prepared_after_the_deadline_of_an_async_call() -> None:
    image = Source()
    make_session(FakeEngine())._start(task(image=image, deadline_s=0.0))

    assert (image.measured, image.prepared) == (0, 0)


def test_a_complete_answer_is_returned_although_the_deadline_has_passed_since() -> None:
    engine = FakeEngine()
    handle = begun(engine, deadline_s=100.0)
    stream = TokenStream(handle)
    engine.give(*TOKENS)
    engine.finish()
    handle.begun -= 200.0

    assert handle.remaining == 0
    assert list(stream) == TOKENS
    assert handle.result().tokens == tuple(TOKENS)

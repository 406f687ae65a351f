import asyncio
import dataclasses
import gc
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.engine import delivery as delivery_module
from photonlite.engine.delivery import Delivery
from photonlite.engine.generation import Generation, _bell
from photonlite.errors import DeadlineError, EngineDiedError, ImageError, PhotonliteError, RequestCancelledError
from photonlite.images.crops import CropSpec
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.sequence import Sequence
from photonlite.skills.encode import EmptyGrammar

GUARD = 30.0
TOKENS = [Token(1), Token(2), Token(3)]
POOL = ImagePool(CropSpec(20, 4, 1, 6), ImageLimits(), 1)


def request() -> Request:
    return Request("caption", (Token(9),) * 4, EmptyGrammar(), 8, SamplingSettings())


@dataclass(eq=False)
class FakeEngine:
    """Takes requests, and does what the test says."""

    sequences: list[Sequence] = field(default_factory=list)
    cancelled: list[Sequence] = field(default_factory=list)
    refusal: PhotonliteError | None = None
    on_submit: Callable[[Sequence], None] = lambda sequence: None
    options: dict[str, Any] = field(default_factory=dict)

    def submit(self, request: Request, sink: Any, image: Any = None, **options: Any) -> Sequence:
        if self.refusal is not None:
            raise self.refusal
        self.options = options
        sequence = Sequence(len(self.sequences), request, sink, prefix_len=10, image=image)
        sequence.times.submitted = options["submitted"]
        sequence.times.preprocess_s = options["preprocess_s"]
        self.sequences.append(sequence)
        self.on_submit(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        self.cancelled.append(sequence)

    def give(self, *tokens: Token) -> None:
        for token in tokens:
            self.sequences[-1].tokens.append(token)
            self.sequences[-1].sink.on_token(token)

    def finish(self, error: BaseException | None = None) -> None:
        sequence = self.sequences[-1]
        sequence.finalized, sequence.error = True, error
        sequence.sink.on_finish(sequence)


def begun(
    engine: FakeEngine,
    prepare: Callable[[], PreparedImage | None] = lambda: None,
    deadline_s: float | None = None,
) -> Generation:
    generation = Generation(request(), deadline_s)
    generation.delivery.submit(engine, prepare)
    return generation


def on_thread(work: Callable[[], Any]) -> "Future[Any]":
    """Run what waits on a thread of its own; the result has a guard against hanging."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, GUARD))


async def settled() -> None:
    """Let other tasks run until they wait for something outside."""
    for _ in range(5):
        await asyncio.sleep(0)


# ---- completions


def test_a_completion_has_tokens_reason_metrics_and_the_size_of_the_image() -> None:
    engine = FakeEngine()
    image = POOL.prepare(Image.new("RGB", (6, 4)))
    generation = begun(engine, lambda: image)
    times = engine.sequences[0].times
    start = times.submitted
    times.admitted, times.first_token, times.finished = start + 1, start + 3, start + 7
    times.preprocess_s, times.encode_s, times.prefill_s = 0.0, 0.25, 0.5  # a busy machine prepares slowly

    engine.give(*TOKENS)
    engine.finish()
    done = generation.complete()

    assert (done.tokens, done.finish_reason, done.picture_size) == (tuple(TOKENS), "stop", (6, 4))
    metrics = done.metrics
    assert (metrics.queue_s, metrics.time_to_first_token_s, metrics.decode_s) == pytest.approx((1, 3, 4))
    assert (metrics.encode_s, metrics.prefill_s) == (0.25, 0.5)
    assert (metrics.prompt_tokens, metrics.output_tokens) == (14, 3)
    assert generation.outcome() == (metrics, "stop")


def test_preprocessing_counts_what_this_request_waited_for() -> None:
    engine = FakeEngine()
    image = POOL.prepare(Image.new("RGB", (6, 4)))
    image.preprocess_s = 5.0  # by an earlier request
    generation = begun(engine, lambda: image)
    image.preprocess_s += 2.0  # cutting
    engine.finish()

    assert 2.0 <= generation.complete().metrics.preprocess_s < 2.5
    assert generation.image is image


def test_an_answer_without_tokens_has_no_times_of_tokens() -> None:
    engine = FakeEngine()
    generation = begun(engine)
    engine.finish()

    metrics = generation.complete().metrics

    assert (metrics.decode_s, metrics.time_to_first_token_s, metrics.queue_s) == (0, 0, 0)


def test_a_thread_waits_until_the_engine_has_finished() -> None:
    engine = FakeEngine()
    generation = begun(engine)
    waiting = on_thread(generation.complete)
    engine.give(*TOKENS)
    assert not waiting.done()
    engine.finish()

    assert waiting.result(GUARD).tokens == tuple(TOKENS)


def test_a_coroutine_waits_until_the_engine_has_finished() -> None:
    async def main() -> Completion:
        engine = FakeEngine()
        generation = begun(engine)
        waiting = asyncio.ensure_future(generation.acomplete())
        await settled()
        assert not waiting.done()
        on_thread(lambda: (engine.give(*TOKENS), engine.finish()))
        return await waiting

    assert run(main()).tokens == tuple(TOKENS)


# ---- streams


def test_tokens_come_one_by_one_and_are_still_in_the_completion() -> None:
    engine = FakeEngine()
    generation = begun(engine)
    first = on_thread(lambda: next(generation))
    engine.give(TOKENS[0])
    assert first.result(GUARD) == TOKENS[0]
    engine.give(*TOKENS[1:])
    engine.finish()

    assert list(generation) == TOKENS[1:]
    assert list(generation) == []
    assert generation.complete().tokens == tuple(TOKENS)


def test_coroutines_get_tokens_one_by_one_too() -> None:
    async def main() -> None:
        engine = FakeEngine()
        generation = begun(engine)
        first = asyncio.ensure_future(anext(generation))
        await settled()
        on_thread(lambda: engine.give(TOKENS[0]))
        assert await first == TOKENS[0]
        engine.give(*TOKENS[1:])
        engine.finish()
        assert [token async for token in generation] == TOKENS[1:]
        assert [token async for token in generation] == []

    run(main())


def test_no_token_is_missed_while_a_coroutine_goes_to_sleep() -> None:
    async def main() -> list[Token]:
        engine = FakeEngine()
        generation = begun(engine)
        many = [Token(n) for n in range(2000)]
        on_thread(lambda: (engine.give(*many), engine.finish()))
        return [token async for token in generation]

    assert [token.id for token in run(main())] == list(range(2000))


def test_a_token_that_comes_just_before_a_coroutine_listens_wakes_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    def late() -> Any:
        engine.give(TOKENS[0])
        return _bell()

    async def main() -> Token:
        generation = begun(engine)
        monkeypatch.setattr("photonlite.engine.generation._bell", late)
        return await anext(generation)

    assert run(main()) == TOKENS[0]


def test_an_error_comes_after_the_tokens_before_it_every_time() -> None:
    engine = FakeEngine()
    generation = begun(engine)
    engine.give(TOKENS[0])
    engine.finish(EngineDiedError("it stopped"))

    assert next(generation) == TOKENS[0]
    for _ in range(2):
        with pytest.raises(EngineDiedError, match="it stopped"):
            next(generation)
    with pytest.raises(EngineDiedError):
        run(anext(generation))  # type: ignore[arg-type]
    with pytest.raises(EngineDiedError):
        generation.complete()


def test_one_error_that_ends_many_requests_is_raised_as_copies() -> None:
    engine, error = FakeEngine(), EngineDiedError("it stopped")
    error.__cause__ = cause = RuntimeError("no power")
    raised = []
    for _ in range(2):
        generation = begun(engine)
        engine.finish(error)
        with pytest.raises(EngineDiedError, match="it stopped") as found:
            generation.complete()
        raised.append(found.value)

    assert len({id(one) for one in (*raised, error)}) == 3
    assert error.__traceback__ is None
    assert raised[0].__cause__ is cause


def test_a_fault_of_a_plug_in_reaches_the_caller_as_it_is_and_not_the_engine() -> None:
    class Broken(EmptyGrammar):
        @property
        def finish_reason(self) -> str:  # type: ignore[override]
            raise ZeroDivisionError

    engine = FakeEngine()
    generation = Generation(Request("x", (), Broken(), 1, SamplingSettings()))
    generation.delivery.submit(engine, lambda: None)
    engine.finish()

    with pytest.raises(ZeroDivisionError):
        generation.complete()


def test_two_coroutines_that_read_one_stream_share_its_tokens_and_both_end() -> None:
    async def main() -> list[list[Token]]:
        engine = FakeEngine()
        generation = begun(engine)

        async def read() -> list[Token]:
            return [token async for token in generation]

        readers = [asyncio.ensure_future(read()) for _ in range(2)]
        await settled()
        engine.give(*TOKENS)
        engine.finish()
        return await asyncio.gather(*readers)

    assert sorted(token.id for tokens in run(main()) for token in tokens) == [1, 2, 3]


# ---- preparation


def test_what_is_wrong_with_the_image_ends_the_request_before_it_is_submitted() -> None:
    def prepare() -> None:
        raise ImageError("no image")

    engine = FakeEngine()
    generation = begun(engine, prepare)

    with pytest.raises(ImageError, match="no image"):
        generation.check()
    assert engine.sequences == []


def test_whatever_a_callers_file_raises_reaches_whoever_waits() -> None:
    class Panic(BaseException):
        pass

    def prepare() -> None:
        raise Panic

    generation = Generation(request())
    start = partial(generation.delivery.submit, FakeEngine(), prepare)
    with pytest.raises(Panic):
        start()

    with pytest.raises(Panic):
        run(generation.acomplete())


def test_an_error_that_is_kept_keeps_nothing_of_what_a_decoder_had_in_hand() -> None:
    class Pixels:
        pass

    held = []

    def decode() -> None:
        pixels = Pixels()
        held.append(weakref.ref(pixels))
        raise ValueError("truncated")

    def prepare() -> None:
        try:
            decode()
        except ValueError as cause:
            raise ImageError("no image") from cause

    generation = begun(FakeEngine(), prepare)
    with pytest.raises(ImageError) as kept:
        generation.complete()

    assert held[0]() is None
    assert "in decode" in "".join(traceback.format_exception(kept.value))


def test_a_refusal_of_the_engine_reaches_the_caller() -> None:
    generation = begun(FakeEngine(refusal=EngineDiedError("it stopped")))

    with pytest.raises(EngineDiedError):
        generation.complete()


def test_checking_an_open_request_raises_nothing() -> None:
    begun(FakeEngine()).check()


def test_a_request_cancelled_before_its_turn_is_neither_prepared_nor_submitted() -> None:
    engine, prepared = FakeEngine(), []
    generation = Generation(request())
    start = partial(generation.delivery.submit, engine, lambda: prepared.append(1))
    generation.cancel()
    start()

    assert (prepared, engine.sequences) == ([], [])
    with pytest.raises(RequestCancelledError):
        generation.complete()


def test_a_request_cancelled_while_it_is_prepared_is_not_submitted() -> None:
    engine = FakeEngine()
    generation = Generation(request())
    generation.delivery.submit(engine, generation.cancel)

    assert engine.sequences == []


def test_a_request_cancelled_while_it_is_handed_in_is_cancelled_in_the_engine() -> None:
    generation = Generation(request())
    engine = FakeEngine(on_submit=lambda sequence: generation.cancel())
    generation.delivery.submit(engine, lambda: None)

    assert engine.cancelled == engine.sequences != []


def test_what_follows_an_answer_is_asked_though_that_ends_while_it_is_handed_in() -> None:
    engine = FakeEngine()

    def finish(sequence: Sequence) -> None:
        sequence.finalized = True
        sequence.sink.on_finish(sequence)

    engine.on_submit = finish
    generation = Generation(request())
    generation.delivery.further = lambda name, completion: [("more", request())] if name is None else []
    generation.delivery.submit(engine, lambda: None)

    assert len(engine.sequences) == 2
    generation.complete()


def test_what_follows_an_answer_belongs_to_the_same_tenant_class_and_deadline() -> None:
    engine = FakeEngine()
    asked = dataclasses.replace(request(), cache_salt="one tenant", realtime=True)
    generation = Generation(asked, 5.0)
    generation.delivery.further = lambda name, completion: [("more", request())] if name is None else []
    given: list[dict[str, Any]] = []
    engine.on_submit = lambda sequence: given.append(engine.options)
    generation.delivery.submit(engine, lambda: None)
    engine.finish()

    first, further = (sequence.request for sequence in engine.sequences)
    assert (further.cache_salt, further.realtime) == (first.cache_salt, first.realtime) == ("one tenant", True)
    assert [options["deadline_s"] for options in given] == [5.0, 5.0]
    assert given[0]["submitted"] == given[1]["submitted"]


def test_a_deadline_counts_from_the_call_whatever_preparing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, now = FakeEngine(), 100.0
    monkeypatch.setattr(delivery_module.time, "perf_counter", lambda: now)
    generation = Generation(request(), 5.0)

    def prepare() -> None:
        nonlocal now
        now += 3.0

    generation.delivery.submit(engine, prepare)

    assert (engine.options["submitted"], engine.options["deadline_s"]) == (100.0, 5.0)
    assert generation.delivery.remaining == 2.0


# ---- giving up


def test_a_cancelled_request_ends_at_once_and_what_the_engine_says_later_does_not_count() -> None:
    engine = FakeEngine()
    generation = begun(engine)
    engine.give(TOKENS[0])
    generation.cancel()
    generation.close()
    engine.finish()

    assert engine.cancelled == engine.sequences
    with pytest.raises(RequestCancelledError):
        generation.complete()


def test_dropping_a_generation_cancels_its_request_though_the_engine_still_has_the_sink() -> None:
    engine = FakeEngine()
    gc.disable()  # it must not wait for the collector of cycles
    try:
        generation = begun(engine)
        engine.give(*TOKENS)
        next(generation)
        del generation
        assert engine.cancelled == engine.sequences
    finally:
        gc.enable()


def test_dropping_a_generation_stops_a_start_that_is_still_to_come() -> None:
    engine = FakeEngine()
    start = partial(Generation(request()).delivery.submit, engine, lambda: None)
    start()

    assert engine.sequences == []


def test_a_finished_request_is_not_cancelled_and_lets_go_of_the_engine() -> None:
    engine = FakeEngine()
    generation = begun(engine)
    engine.finish()
    generation.complete()
    seen = weakref.ref(engine)
    generation.cancel()
    assert engine.cancelled == []
    del engine
    assert seen() is None


def test_a_failed_request_lets_go_of_the_engine() -> None:
    engine = FakeEngine(refusal=EngineDiedError("it stopped"))
    generation = begun(engine)
    with pytest.raises(EngineDiedError):
        generation.complete()
    seen = weakref.ref(engine)
    del engine

    assert seen() is None


@pytest.mark.parametrize("how", [Generation.acomplete, Generation.__anext__])
def test_cancelling_a_task_that_waits_cancels_the_request(how: Callable[[Generation], Any]) -> None:
    async def main() -> FakeEngine:
        engine = FakeEngine()
        generation = begun(engine)  # held, so that it is not dropping it that cancels
        waiting = asyncio.ensure_future(how(generation))
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
    generation = begun(engine)
    monkeypatch.setattr("concurrent.futures.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generation.complete()

    assert engine.cancelled == engine.sequences != []


def test_an_interrupted_reader_of_a_stream_cancels_it_too() -> None:
    class Interrupted:
        def get(self, timeout: float | None = None) -> Token:
            raise KeyboardInterrupt

        def put(self, token: Token | None) -> None: ...

    engine = FakeEngine()
    generation = begun(engine)
    generation._delivery.tokens = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(generation)

    assert engine.cancelled == engine.sequences != []


def test_a_loop_that_has_been_closed_does_not_disturb_the_engine() -> None:
    delivery = Delivery(request(), None)

    async def wait_and_leave() -> None:
        delivery.bells.append(_bell()[1])

    asyncio.run(wait_and_leave())
    delivery.on_token(TOKENS[0])

    assert delivery.tokens.get() == TOKENS[0]


# ---- deadlines


@pytest.mark.parametrize("wait", [Generation.complete, Generation.__next__])
def test_waiting_ends_at_the_deadline_whatever_the_engine_does(wait: Callable[[Generation], Any]) -> None:
    engine = FakeEngine()
    generation = begun(engine, deadline_s=0.01)
    assert engine.options["deadline_s"] == 0.01

    with pytest.raises(DeadlineError, match=r"within 0\.01 s"):
        on_thread(lambda: wait(generation)).result(GUARD)


@pytest.mark.parametrize("deadline_s", [1e10, 1e300])
@pytest.mark.parametrize("wait", [Generation.complete, list])
def test_a_deadline_may_lie_further_off_than_a_lock_can_wait(wait: Callable[[Any], Any], deadline_s: float) -> None:
    engine = FakeEngine()
    generation = begun(engine, deadline_s=deadline_s)
    waiting = on_thread(lambda: wait(generation))
    engine.finish()

    waiting.result(GUARD)
    assert generation.complete().finish_reason is not None


@pytest.mark.parametrize("wait", [Generation.acomplete, Generation.__anext__])
def test_awaiting_ends_at_the_deadline_too(wait: Callable[[Generation], Any]) -> None:
    async def main() -> None:
        await wait(begun(FakeEngine(), deadline_s=0.01))

    with pytest.raises(DeadlineError):
        run(main())


def test_a_deadline_that_passes_during_preparation_saves_the_engine_the_work() -> None:
    engine = FakeEngine()
    generation = begun(engine, deadline_s=0.0)

    assert engine.sequences == []
    with pytest.raises(DeadlineError):
        generation.check()


def test_an_image_is_not_prepared_after_the_deadline_though_nobody_waits_for_it() -> None:
    prepared: list[int] = []
    generation = Generation(request(), 0.0)
    generation.delivery.submit(FakeEngine(), lambda: prepared.append(1))

    assert prepared == []


def test_an_answer_that_is_there_counts_though_the_deadline_has_passed_since() -> None:
    engine = FakeEngine()
    generation = begun(engine, deadline_s=100.0)
    engine.give(*TOKENS)
    engine.finish()
    delivery: Delivery = generation._delivery
    delivery._begun -= 200.0

    assert delivery.remaining == 0
    assert list(generation) == TOKENS
    assert generation.complete().tokens == tuple(TOKENS)

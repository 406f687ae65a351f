"""Steps of a request up to the engine: permit, image, grammar, follow-ups; on the caller's thread and on the pool."""

import dataclasses
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from photonlite.api.reading import FETCHED_BYTES as FETCHED
from photonlite.api.session import Session
from photonlite.config import EngineConfig
from photonlite.engine.handle import RequestHandle, TokenStream
from photonlite.errors import (
    DeadlineError,
    EngineDiedError,
    ModelError,
    RequestCancelledError,
    SchemaError,
    SettingsError,
    StepError,
    TruncatedError,
)
from photonlite.images.pool import PreparedImage
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.sequence import Sequence
from photonlite.skills import encode
from photonlite.skills.encode import FixedGrammar
from photonlite.skills.tiles import Region
from tests.api.fakes import (
    BYTES,
    GUARD,
    ROOM,
    FakeEngine,
    Source,
    Threads,
    make_session,
    on_thread,
    request,
    task,
)
from tests.engine.fakes import END, Words
from tests.skills.fake import FakePrompts


def finished(handle: RequestHandle) -> None:
    assert on_thread(handle.wait).result(GUARD) is None


# ---- room


def test_an_image_holds_its_permit_until_the_first_token() -> None:
    engine = FakeEngine()
    session = make_session(engine)
    session._start(task(image=Source()))
    assert session.gate.held == BYTES
    engine.give(Token(1))
    assert session.gate.held == 0
    engine.give(Token(2))
    engine.finish()

    assert session.gate.held == 0


@pytest.mark.parametrize("end", ["finish", "cancel", "drop"])
def test_an_image_releases_its_permit_however_its_request_ends(end: str) -> None:
    engine = FakeEngine()
    session = make_session(engine)
    handle = session._start(task(image=Source()))
    if end == "finish":
        engine.finish()
    elif end == "cancel":
        handle.cancel()
    else:
        stream = TokenStream(handle)
        del stream

    assert (session.gate.held, session.open) == (0, set())


def test_a_call_without_a_permit_waits_before_decoding_and_blocks_no_pool_thread() -> None:
    engine, threads, images = FakeEngine(), Threads(), [Source() for _ in range(3)]
    session = make_session(engine, threads, ROOM)
    for image in images:
        session.launch(task(image=image))
    for _ in images:
        threads.work()
    assert [image.prepared for image in images] == [1, 0, 0]

    for done in (1, 2):
        engine.give(Token(1))
        threads.work()
        assert sum(image.prepared for image in images) == 1 + done
    assert [sequence.image is not None for sequence in engine.sequences] == [True] * 3


def test_an_image_behind_a_url_has_a_permit_from_before_it_is_fetched() -> None:
    threads, web, image = Threads(), Source(behind_url=True), Source()
    session = make_session(FakeEngine(), threads, EngineConfig(max_prepared_bytes=4 * FETCHED // 3))
    for source in (web, image):
        session.launch(task(image=source))
        threads.work()
    assert (session.gate.held, image.prepared) == (FETCHED, 0)

    (future, hold), *_ = threads.fetched
    hold(1)
    assert session.gate.held == FETCHED
    hold(FETCHED + 5)
    assert session.gate.held == FETCHED + 5
    future.set_result(Source())
    threads.work()
    threads.work()
    assert session.gate.held == 2 * BYTES


def test_cancelling_a_call_cancels_its_fetch() -> None:
    threads = Threads()
    session = make_session(FakeEngine(), threads)
    handle = session.launch(task(image=Source(behind_url=True)))
    threads.work()
    handle.cancel()

    assert threads.fetched[0][0].cancelled()
    assert session.gate.held == 0


def test_a_realtime_call_overtakes_calls_that_wait_for_a_pool_thread() -> None:
    threads, bulk, robot = Threads(), Source(), Source()
    session = make_session(FakeEngine(), threads)
    session.launch(task(image=bulk))
    session.launch(task(request(realtime=True), robot))
    threads.work()

    assert (bulk.prepared, robot.prepared) == (0, 1)


def test_a_blocking_call_waits_for_its_permit_on_its_own_thread() -> None:
    engine, image = FakeEngine(), Source()
    session = make_session(engine, config=ROOM)
    session._start(task(image=Source()))
    waiting = on_thread(lambda: session._start(task(image=image)))
    while not session.gate.waiting:
        assert not waiting.done()
    engine.finish()
    waiting.result(GUARD)

    assert image.prepared == 1


@pytest.mark.parametrize("here", [True, False])
def test_a_deadline_that_passes_before_the_permit_skips_decoding(here: bool) -> None:
    threads, image = Threads(), Source()
    session = make_session(FakeEngine(), threads, ROOM)
    first = session._start(task(image=Source()))
    late = task(image=image, deadline_s=0.01)
    if here:
        handle = on_thread(lambda: session._start(late)).result(GUARD)
    else:
        handle = session.launch(late)
        threads.work()
        handle.wait()

    assert (image.prepared, session.gate.waiting, session.open, session._late) == (0, 0, {first}, 1)
    with pytest.raises(DeadlineError):
        handle.raise_error()


def test_a_call_whose_deadline_passed_before_its_first_step_reads_no_header() -> None:
    threads, image = Threads(), Source()
    session = make_session(FakeEngine(), threads)
    late = session.launch(task(image=image, deadline_s=0.0))  # and its result is not awaited
    threads.work()

    assert (image.measured, image.prepared, session.gate.held) == (0, 0, 0)
    with pytest.raises(DeadlineError):
        late.raise_error()


def test_a_permit_granted_after_the_pool_closed_fails_the_call() -> None:
    engine, threads = FakeEngine(), Threads()
    session = make_session(engine, threads, ROOM)
    session._start(task(image=Source()))
    second = session.launch(task(image=Source()))
    threads.work()
    threads.closed = True
    engine.finish()
    finished(second)

    with pytest.raises(ModelError, match="closed"):
        second.raise_error()


def test_errors_of_a_realtime_callers_file_do_not_reach_the_pool_thread() -> None:
    class Panic(BaseException):
        pass

    def prepare() -> PreparedImage:
        raise Panic

    threads = Threads()
    handle = make_session(FakeEngine(), threads).launch(task(request(realtime=True), Source(prepare)))
    threads.work()

    with pytest.raises(Panic):
        handle.result()


def test_preparing_for_an_ended_request_stops_at_the_next_checkpoint() -> None:
    handle = RequestHandle(request())
    handle.check()
    handle.cancel()
    with pytest.raises(RequestCancelledError):
        handle.check()
    with pytest.raises(DeadlineError):
        RequestHandle(request(), 0.0).check()


# ---- grammars


WHOLE = Request("query", (Token(9), Token(8)), FixedGrammar(), 5, SamplingSettings())


@dataclass
class Typed:
    """A question that needs a grammar; records the automata it was bound to."""

    spec: Any = "spec"
    told: list[Any] = field(default_factory=list)
    draft: Request = WHOLE

    def encoding(self) -> Request:
        return encode.build(FakePrompts())

    def bind(self, automaton: Any, sizes: Any = ()) -> Request:
        self.told.append(automaton)
        return WHOLE


class Asked:
    """A typed question about an image of 72 bytes."""

    def __init__(self, *, here: bool = False, deadline_s: float | None = None, **options: Any) -> None:
        self.engine, self.threads = FakeEngine(), Threads()
        self.typed, self.image = Typed(), Source()
        self.session: Session = make_session(self.engine, self.threads)
        self.compiler: Any = self.session._compiler
        self.task = task(request(**options), self.image, deadline_s=deadline_s, typed=self.typed)
        self._here = here

    def begin(self) -> RequestHandle:
        if self._here:
            return self.session._start(self.task)
        handle = self.session.launch(self.task)
        self.threads.work()
        return handle


@pytest.mark.parametrize("here", [True, False])
def test_a_request_with_a_cached_grammar_is_submitted_at_once(here: bool) -> None:
    asked = Asked(here=here)
    asked.compiler.future.set_result("automaton")
    handle = asked.begin()

    assert (asked.engine.requests, asked.typed.told) == ([WHOLE], ["automaton"])
    assert handle.request == WHOLE


def test_a_form_without_a_spec_does_not_wait_for_the_compiler() -> None:
    asked = Asked(here=True)
    asked.typed.spec = None
    asked.begin()

    assert (asked.engine.requests, asked.typed.told) == ([WHOLE], [None])


def test_the_image_is_encoded_while_its_grammar_compiles_and_no_pool_thread_waits() -> None:
    asked = Asked()
    engine, threads = asked.engine, asked.threads
    handle = asked.begin()
    assert [one.skill for one in engine.requests] == ["encode"]
    assert engine.sequences[0].image is handle.image
    assert not threads.jobs
    engine.sequences[0].times.encode_s = 0.75
    engine.finish()
    asked.compiler.future.set_result("automaton")
    threads.work()

    assert [one.skill for one in engine.requests] == ["encode", "query"]
    assert asked.image.prepared == 1
    assert asked.session.gate.held == BYTES  # until the first token
    engine.give(Token(1))
    engine.finish()
    assert asked.session.gate.held == 0
    assert handle.result().metrics.encode_s == 0.75


def test_a_blocking_call_waits_for_the_grammar_on_its_own_thread() -> None:
    asked, submitted = Asked(here=True), threading.Event()
    asked.engine.on_submit = lambda sequence: submitted.set()
    waiting = on_thread(asked.begin)
    assert submitted.wait(GUARD)
    assert not waiting.done()
    asked.compiler.future.set_result("automaton")
    waiting.result(GUARD)

    assert [one.skill for one in asked.engine.requests] == ["encode", "query"]


@pytest.mark.parametrize("here", [True, False])
def test_a_grammar_error_fails_its_request(here: bool) -> None:
    asked = Asked(here=here)
    error = SchemaError("no such keyword", "nope", "/properties/a")
    if here:
        asked.compiler.future.set_exception(error)
        handle = asked.begin()
    else:
        handle = asked.begin()
        asked.compiler.future.set_exception(error)
        asked.threads.work()

    assert WHOLE not in asked.engine.requests
    with pytest.raises(SchemaError, match="no such keyword") as raised:
        handle.result()
    assert (raised.value.keyword, raised.value.where) == ("nope", "/properties/a")


@pytest.mark.parametrize("here", [True, False])
def test_a_refused_encoding_fails_the_request(here: bool) -> None:
    asked = Asked(here=here)
    asked.engine.refusal = EngineDiedError("the engine has stopped")
    handle = on_thread(asked.begin).result(GUARD)

    assert handle.submitted.done()
    with pytest.raises(EngineDiedError):
        handle.raise_error()
    assert asked.compiler.future.cancelled()
    assert not asked.typed.told


def test_cancelling_a_request_cancels_its_grammar_and_its_encoding() -> None:
    asked = Asked()
    asked.begin().cancel()

    assert asked.compiler.future.cancelled()
    assert asked.engine.cancelled == [asked.engine.sequences[0]]
    assert not asked.threads.jobs  # a collection of garbage may cancel, which must not take the pool's lock
    assert (len(asked.engine.requests), asked.typed.told, asked.session.gate.held) == (1, [], 0)


def test_a_deadline_ends_the_wait_for_a_grammar() -> None:
    asked = Asked(here=True, deadline_s=GUARD)

    def pass_deadline(_: Sequence) -> None:
        [handle] = asked.session.open
        handle.begun -= GUARD

    asked.engine.on_submit = pass_deadline  # while its image is encoded
    handle = on_thread(asked.begin).result(GUARD)

    assert (WHOLE in asked.engine.requests, asked.typed.told) == (False, [])
    assert asked.compiler.future.cancelled()
    with pytest.raises(DeadlineError):
        handle.raise_error()


def test_a_realtime_call_stays_urgent_after_its_grammar() -> None:
    asked = Asked(realtime=True)
    asked.begin()
    asked.compiler.future.set_result("automaton")

    assert (len(asked.threads.urgent), len(asked.threads.jobs)) == (1, 0)


def test_a_grammar_that_arrives_after_the_pool_closed_raises_nothing() -> None:
    asked = Asked()
    handle = asked.begin()
    asked.threads.closed = True
    asked.compiler.future.set_result("automaton")

    with pytest.raises(ModelError, match="closed"):
        handle.result()


# ---- follow-up requests


class Scored:
    """A request with follow-up requests; `plan` names those that follow each."""

    def __init__(self, plan: dict[Any, list[str]], **options: Any) -> None:
        self.plan = plan
        self.told: list[tuple[Any, int]] = []
        self.engine, self.threads = FakeEngine(), Threads()
        asked = Request("query", (Token(1),), Words(), 5, SamplingSettings(), **options)
        self.task = task(asked, deadline_s=GUARD, further=self._further)
        self.handle = make_session(self.engine, self.threads).launch(self.task)
        self.threads.work()

    def finish(self, number: int, error: BaseException | None = None) -> None:
        sequence = self.engine.sequences[number]
        sequence.tokens += [Token(7)] * number + [Token(END)]
        for token in sequence.tokens:
            sequence.request.grammar.accept(token)
            sequence.sink.on_token(token)
        sequence.times.encode_s, sequence.times.prefill_s = 0.125, 0.25
        sequence.times.first_token, sequence.times.finished = 4.0, 4.5
        self.engine.finish(error, number)
        while self.threads.jobs or self.threads.urgent:
            self.threads.work()

    def _further(self, name: Any, completion: Completion) -> Iterable[tuple[Any, Request]]:
        self.told.append((name, len(completion.tokens)))
        names = self.plan.pop(name, [])
        return [(known, Request("query", (Token(1),), Words(), 5, SamplingSettings())) for known in names]


def test_an_answer_without_follow_ups_is_returned_unchanged() -> None:
    scored = Scored({})
    scored.finish(0)

    assert scored.handle.result().tokens == (Token(END),)
    assert scored.told == [(None, 1)]
    assert list(TokenStream(scored.handle)) == [Token(END)]


def test_follow_up_requests_continue_until_none_is_left() -> None:
    scored = Scored({None: ["a", "b"], "a": ["aa"]})
    scored.finish(0)
    scored.finish(2)
    scored.finish(1)
    assert (len(scored.engine.sequences), scored.handle.future.done()) == (4, False)
    scored.finish(3)

    assert scored.told == [(None, 1), ("a", 2), ("b", 3), ("aa", 4)]
    done = scored.handle.result()
    assert (done.tokens, done.finish_reason) == ((Token(END),), "stop")
    metrics = done.metrics
    assert (metrics.encode_s, metrics.prefill_s, metrics.decode_s, metrics.output_tokens) == (0.5, 1.0, 2.0, 10)
    assert not scored.engine.cancelled


def test_a_failed_follow_up_fails_the_request_and_cancels_the_others() -> None:
    scored = Scored({None: ["a", "b"]})
    scored.finish(0)
    scored.finish(1, RuntimeError("gone"))

    with pytest.raises(RuntimeError, match="gone"):
        scored.handle.result()
    assert scored.engine.cancelled == [scored.engine.sequences[2]]


@pytest.mark.parametrize("at", ["further", "submit"])
def test_an_error_between_follow_ups_fails_the_request(at: str) -> None:
    scored = Scored({None: ["a"], "a": ["aa"]})
    scored.finish(0)
    if at == "further":
        scored.plan["a"] = 1 / 2  # type: ignore[assignment]
    else:
        scored.engine.refusal = EngineDiedError("it stopped")
    scored.finish(1)

    with pytest.raises(TypeError if at == "further" else EngineDiedError):
        scored.handle.result()


def test_cancelling_reaches_running_follow_ups_and_starts_no_more() -> None:
    scored = Scored({None: ["a", "b"], "a": ["aa"]})
    scored.finish(0)
    scored.handle.cancel()
    scored.finish(1)

    assert scored.engine.cancelled == scored.engine.sequences[1:]
    assert len(scored.engine.sequences) == 3


def test_cancelling_during_submission_reaches_the_newest_follow_up() -> None:
    scored = Scored({None: ["a", "b"]})
    scored.engine.on_submit = lambda sequence: scored.handle.cancel()
    scored.finish(0)

    assert scored.engine.cancelled == scored.engine.sequences[1:]
    assert len(scored.engine.sequences) == 2


def test_follow_ups_keep_cache_salt_class_and_deadline() -> None:
    scored = Scored({None: ["a"]}, cache_salt="one tenant", realtime=True)
    before = scored.engine.options
    scored.finish(0)

    assert [(one.cache_salt, one.realtime) for one in scored.engine.requests] == [("one tenant", True)] * 2
    assert before["deadline_s"] == scored.engine.options["deadline_s"] == GUARD
    assert before["submitted"] == scored.engine.options["submitted"]


# ---- calls of several requests


def part_request(budget: int = 5) -> Request:
    return Request("detect", (Token(1),), Words(budget), budget, SamplingSettings())


def tiled(regions: list[Region | None]) -> Any:
    return lambda size: [(region, part_request()) for region in regions]


class Joined:
    """A call of several requests about one image."""

    def __init__(self, count: int = 3, *, deadline_s: float = 60.0, parts: Any = None, **options: Any) -> None:
        self.engine, self.threads, self.image = FakeEngine(), Threads(), Source()
        parts = parts or tiled([None] * count)
        asked = dataclasses.replace(part_request(), **options)
        self.session = make_session(self.engine, self.threads)
        self.handle = self.session.launch(task(asked, self.image, deadline_s=deadline_s, parts=parts))
        self.threads.work()

    def finish(self, number: int, tokens: int = 1, error: BaseException | None = None) -> None:
        sequence = self.engine.sequences[number]
        for token in [Token(7)] * (tokens - 1) + [Token(END)]:
            if sequence.request.grammar.finish_reason is None:
                sequence.tokens.append(token)
                sequence.request.grammar.accept(token)
                sequence.sink.on_token(token)
        sequence.times.encode_s, sequence.times.prefill_s = 0.5 * (number == 0), 0.25
        sequence.times.first_token, sequence.times.finished = 4.0 + number, 4.5 + number
        self.engine.finish(error, number)
        while self.threads.jobs or self.threads.urgent:
            self.threads.work()


def test_the_requests_of_a_call_are_submitted_together_behind_one_preparation() -> None:
    joined = Joined(3, cache_salt="tenant", realtime=True)

    assert len(joined.engine.sequences) == 3
    assert joined.image.prepared == 1
    assert len({id(sequence.image) for sequence in joined.engine.sequences}) == 1
    assert [(one.cache_salt, one.realtime) for one in joined.engine.requests] == [("tenant", True)] * 3
    assert joined.session.open == {joined.handle}


def test_a_call_ends_with_the_completions_in_the_order_of_its_requests_and_their_sums() -> None:
    joined = Joined(3)
    joined.finish(2, tokens=3)
    joined.finish(0, tokens=1)
    assert not joined.handle.future.done()
    joined.finish(1, tokens=2)

    done = joined.handle.result()
    assert [len(part.tokens) for part in done.parts] == [1, 2, 3]
    assert (done.tokens, done.finish_reason, done.picture_size) == ((), "stop", (6, 4))
    metrics, first = done.metrics, done.parts[0].metrics
    assert (metrics.encode_s, metrics.prefill_s, metrics.decode_s, metrics.output_tokens) == (0.5, 0.75, 1.5, 6)
    assert metrics.prompt_tokens == 3 * first.prompt_tokens
    assert (metrics.preprocess_s, metrics.requests) == (first.preprocess_s, 3)
    assert joined.session.open == set()


def test_a_call_is_cut_short_if_one_of_its_requests_is() -> None:
    joined = Joined(2)
    joined.finish(0)
    joined.finish(1, tokens=9)

    assert joined.handle.result().finish_reason == "length"


def test_a_strict_call_fails_as_soon_as_one_request_is_cut_short() -> None:
    joined = Joined(3, strict=True)
    joined.finish(1, tokens=9)

    with pytest.raises(TruncatedError):
        joined.handle.result()
    assert joined.engine.cancelled == [joined.engine.sequences[0], joined.engine.sequences[2]]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_failure_ends_the_call_with_its_error_and_cancels_the_others(number: int) -> None:
    joined = Joined(3)
    joined.finish(number, error=StepError("lost"))

    with pytest.raises(StepError, match="lost"):
        joined.handle.result()
    assert joined.engine.cancelled == [one for index, one in enumerate(joined.engine.sequences) if index != number]
    assert joined.session.gate.held == 0


@pytest.mark.parametrize("finished", [(), (0,), (2,)])
def test_cancelling_a_call_cancels_what_is_left_of_it(finished: tuple[int, ...]) -> None:
    joined = Joined(3)
    for number in finished:
        joined.finish(number)
    joined.handle.cancel()

    assert joined.engine.cancelled == [
        one for index, one in enumerate(joined.engine.sequences) if index not in finished
    ]
    assert (joined.session.open, joined.session.gate.held) == (set(), 0)


def test_cancelling_during_submission_submits_no_further_request() -> None:
    engine, threads = FakeEngine(), Threads()
    handles: list[RequestHandle] = []
    engine.on_submit = lambda sequence: handles[0].cancel()
    handles.append(make_session(engine, threads).launch(task(part_request(), Source(), parts=tiled([None, None]))))
    threads.work()

    assert engine.cancelled == engine.sequences
    assert len(engine.sequences) == 1


def test_all_requests_of_a_call_have_its_deadline() -> None:
    joined = Joined(2, deadline_s=1e-9)

    with pytest.raises(DeadlineError):
        joined.handle.result()
    assert joined.engine.sequences == []
    joined = Joined(2, deadline_s=GUARD)
    assert joined.engine.options["deadline_s"] == GUARD
    assert joined.engine.options["submitted"] == joined.handle.begun


def test_a_call_holds_its_permit_until_the_first_request_has_a_token() -> None:
    joined = Joined(2)
    assert joined.session.gate.held == BYTES

    joined.engine.sequences[0].sink.on_token(Token(7))
    assert joined.session.gate.held == 0


def test_a_refused_request_ends_the_call() -> None:
    engine, threads = FakeEngine(), Threads()

    def refuse(sequence: Any) -> None:
        engine.refusal = EngineDiedError("it stopped")

    engine.on_submit = refuse
    handle = make_session(engine, threads).launch(task(part_request(), Source(), parts=tiled([None, None])))
    threads.work()

    with pytest.raises(EngineDiedError):
        handle.result()
    assert engine.cancelled == engine.sequences


# ---- tiles of an image


LEFT, RIGHT = (Region((x, 0, x + 4, 4), (x, 0, x + 4, 4)) for x in (0, 2))


def test_tiles_are_parts_of_the_one_image_that_was_prepared() -> None:
    joined = Joined(parts=tiled([None, None, LEFT, LEFT, RIGHT]))

    assert joined.image.prepared == 1
    images = [sequence.image for sequence in joined.engine.sequences]
    assert [image.size for image in images] == [(6, 4), (6, 4), (4, 4), (4, 4), (4, 4)]
    assert [image.key for image in images[:2]] == [images[0].key] * 2
    assert images[2] is images[3]
    assert len({image.key for image in images}) == 3


def test_a_call_with_tiles_holds_its_permit_until_all_of_them_were_cut() -> None:
    joined = Joined(parts=tiled([None, LEFT, RIGHT]))
    for number in (0, 1):
        joined.finish(number)
        assert joined.session.gate.held == BYTES

    joined.finish(2)
    assert joined.session.gate.held == 0


def test_the_cost_of_tiles_is_summed_and_each_image_is_prepared_once() -> None:
    joined = Joined(parts=tiled([None, None, LEFT, LEFT, RIGHT]))
    for sequence in joined.engine.sequences:
        if sequence.image is not None and sequence.image.preprocess_s == 0:
            sequence.image.preprocess_s = 0.125
    before = joined.handle.preprocess_s
    for number in range(5):
        joined.finish(number)

    metrics = joined.handle.result().metrics
    assert metrics.preprocess_s == pytest.approx(before + 2 * 0.125)
    assert (metrics.requests, metrics.tiles, metrics.prefill_s, metrics.output_tokens) == (5, 2, 1.25, 5)
    assert joined.handle.result().picture_size == (6, 4)


def test_tiles_that_the_image_does_not_allow_fail_the_call() -> None:
    def refuse(size: tuple[int, int]) -> Any:
        raise SettingsError(f"no tiles of {size}")

    joined = Joined(parts=refuse)
    with pytest.raises(SettingsError, match="no tiles"):
        joined.handle.result()
    assert (joined.engine.sequences, joined.session.open, joined.session.gate.held) == ([], set(), 0)

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.engine.calls import Calls
from photonlite.engine.generation import Generation
from photonlite.engine.preparation import Binding, Preparation
from photonlite.engine.window import Lane
from photonlite.errors import DeadlineError, EngineDiedError, ModelError, RequestCancelledError, SchemaError
from photonlite.images.crops import CropSpec
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.request import Request, SamplingSettings, Token
from photonlite.skills.encode import EmptyGrammar
from tests.engine.test_generation import FakeEngine, on_thread

GUARD = 30.0
POOL = ImagePool(CropSpec(20, 4, 1, 6), ImageLimits(), 1)
BYTES = 3 * 6 * 4


class Threads:
    """Jobs that a test does when it wants to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.urgent: list[Callable[[], None]] = []
        self.arrived = threading.Semaphore(0)
        self.closed = False

    def submit(self, job: Callable[[], None]) -> Future[Any]:
        if self.closed:
            raise ModelError("the model is closed: load it again")
        self.jobs.append(job)
        self.arrived.release()
        return Future()

    def hurry(self, job: Callable[[], None]) -> None:
        self.urgent.append(job)
        self.arrived.release()

    def work(self) -> None:
        assert self.arrived.acquire(timeout=GUARD)
        (self.urgent or self.jobs).pop(0)()


class Asked:
    """One call about an image of 72 bytes."""

    def __init__(
        self,
        engine: FakeEngine,
        lane: Lane,
        deadline_s: float | None = None,
        *,
        realtime: bool = False,
        binding: Binding | None = None,
    ) -> None:
        request = Request("caption", (Token(9),), EmptyGrammar(), 8, SamplingSettings(), realtime=realtime)
        self.generation = Generation(request, deadline_s)
        self.prepared = self.measured = 0
        self.preparation = Preparation(self.generation.delivery, engine, lane, self._measure, self._prepare, binding)

    def _measure(self) -> int:
        self.measured += 1
        return BYTES

    def _prepare(self) -> PreparedImage:
        self.prepared += 1
        return POOL.prepare(Image.new("RGB", (6, 4)))


def test_an_image_takes_room_until_the_first_token() -> None:
    engine, lane = FakeEngine(), Lane(100)
    asked = Asked(engine, lane)
    asked.preparation.here()
    assert lane.held == BYTES
    engine.give(Token(1))
    assert lane.held == 0
    engine.give(Token(2))
    engine.finish()

    assert lane.held == 0


@pytest.mark.parametrize("end", ["finish", "cancel", "drop"])
def test_an_image_gives_its_room_back_however_its_request_ends(end: str) -> None:
    engine, lane = FakeEngine(), Lane(100)
    asked = Asked(engine, lane)
    asked.preparation.here()
    if end == "finish":
        engine.finish()
    elif end == "cancel":
        asked.generation.cancel()
    else:
        del asked.generation

    assert lane.held == 0


def test_a_call_without_room_waits_before_its_image_is_decoded_and_blocks_no_thread_of_the_pool() -> None:
    engine, lane, threads = FakeEngine(), Lane(100), Threads()
    calls = [Asked(engine, lane) for _ in range(3)]
    for call in calls:
        call.preparation.on(threads)
    for _ in calls:
        threads.work()
    assert [call.prepared for call in calls] == [1, 0, 0]

    for done in (1, 2):
        engine.give(Token(1))
        threads.work()
        assert sum(call.prepared for call in calls) == 1 + done
    assert [sequence.image is not None for sequence in engine.sequences] == [True] * 3


def test_a_realtime_call_goes_before_all_that_waits_for_a_thread() -> None:
    engine, lane, threads = FakeEngine(), Lane(1000), Threads()
    bulk, robot = Asked(engine, lane), Asked(engine, lane, realtime=True)
    bulk.preparation.on(threads)
    robot.preparation.on(threads)
    threads.work()

    assert (bulk.prepared, robot.prepared) == (0, 1)


def test_a_thread_that_asks_waits_for_room_itself() -> None:
    engine, lane = FakeEngine(), Lane(100)
    first, second = Asked(engine, lane), Asked(engine, lane)
    first.preparation.here()
    waiting = on_thread(second.preparation.here)
    while not lane.waiting:
        assert not waiting.done()
    engine.finish()
    waiting.result(GUARD)

    assert second.prepared == 1


@pytest.mark.parametrize("here", [True, False])
def test_a_deadline_that_passes_in_front_of_the_room_saves_decoding(here: bool) -> None:
    engine, lane, threads, calls = FakeEngine(), Lane(100), Threads(), Calls()
    first, late = Asked(engine, lane), Asked(engine, lane, 0.01)
    calls.watch(late.generation.delivery)
    first.preparation.here()
    if here:
        on_thread(late.preparation.here).result(GUARD)
    else:
        late.preparation.on(threads)
        threads.work()
        late.generation.wait()

    assert (late.prepared, lane.waiting, calls.open, calls.late) == (0, 0, 0, 1)
    with pytest.raises(DeadlineError):
        late.generation.check()


def test_a_call_whose_deadline_has_passed_when_its_turn_comes_is_not_even_measured() -> None:
    engine, lane, threads = FakeEngine(), Lane(100), Threads()
    late = Asked(engine, lane, 0.0)
    late.preparation.on(threads)  # and nobody waits for it
    threads.work()

    assert (late.measured, late.prepared, lane.held) == (0, 0, 0)
    with pytest.raises(DeadlineError):
        late.generation.check()


def test_a_call_that_is_let_in_when_the_threads_have_ended_is_told_so() -> None:
    engine, lane, threads = FakeEngine(), Lane(100), Threads()
    first, second = Asked(engine, lane), Asked(engine, lane)
    first.preparation.here()
    second.preparation.on(threads)
    threads.work()
    threads.closed = True
    engine.finish()
    second.generation.wait()

    with pytest.raises(ModelError, match="closed"):
        second.generation.check()
    assert not lane.settle()


def test_whatever_a_realtime_callers_file_raises_does_not_reach_the_thread_that_hurries() -> None:
    class Panic(BaseException):
        pass

    def prepare() -> None:
        raise Panic

    generation = Generation(Request("caption", (Token(9),), EmptyGrammar(), 8, SamplingSettings(), realtime=True))
    threads = Threads()
    Preparation(generation.delivery, FakeEngine(), Lane(9), None, prepare).on(threads)
    threads.work()

    with pytest.raises(Panic):
        generation.complete()


def test_work_for_a_request_that_has_ended_stops_at_the_next_checkpoint() -> None:
    generation = Generation(Request("caption", (Token(9),), EmptyGrammar(), 8, SamplingSettings()))
    generation.delivery.check()
    generation.cancel()
    with pytest.raises(RequestCancelledError):
        generation.delivery.check()
    late = Generation(Request("caption", (Token(9),), EmptyGrammar(), 8, SamplingSettings()), 0.0)
    with pytest.raises(DeadlineError):
        late.delivery.check()


WHOLE = Request("query", (Token(9), Token(8)), EmptyGrammar(), 5, SamplingSettings())
ENCODE = Request("encode", (), EmptyGrammar(), 0, SamplingSettings())


def bound(future: Any, *, meanwhile: Request | None = None) -> tuple[Binding, list[Any]]:
    """A binding, and what its automata were."""
    told: list[Any] = []

    def bind(automaton: Any) -> Request:
        told.append(automaton)
        return WHOLE

    return Binding(bind, future, meanwhile), told


def requests(engine: FakeEngine) -> list[Request]:
    return [sequence.request for sequence in engine.sequences]


@pytest.mark.parametrize("here", [True, False])
def test_a_request_whose_grammar_is_there_is_handed_in_whole(here: bool) -> None:
    engine, lane, threads = FakeEngine(), Lane(100), Threads()
    future: Future[Any] = Future()
    future.set_result("automaton")
    binding, told = bound(future, meanwhile=ENCODE)
    asked = Asked(engine, lane, binding=binding)
    if here:
        asked.preparation.here()
    else:
        asked.preparation.on(threads)
        threads.work()

    assert (requests(engine), told) == ([WHOLE], ["automaton"])
    assert asked.generation.delivery.request is WHOLE


def test_nothing_to_compile_is_nothing_to_wait_for() -> None:
    engine = FakeEngine()
    binding, told = bound(None)
    Asked(engine, Lane(100), binding=binding).preparation.here()

    assert (requests(engine), told) == ([WHOLE], [None])


def test_while_a_grammar_is_compiled_its_image_is_encoded_and_no_thread_of_the_pool_waits() -> None:
    engine, lane, threads = FakeEngine(), Lane(100), Threads()
    future: Future[Any] = Future()
    binding, _ = bound(future, meanwhile=ENCODE)
    asked = Asked(engine, lane, binding=binding)
    asked.preparation.on(threads)
    threads.work()
    assert requests(engine) == [ENCODE]
    assert engine.sequences[0].image is asked.generation.image
    assert not threads.jobs
    engine.sequences[0].times.encode_s = 0.75
    engine.finish()
    future.set_result("automaton")
    threads.work()

    assert requests(engine) == [ENCODE, WHOLE]
    assert asked.prepared == 1
    assert lane.held == BYTES  # until the first token
    engine.give(Token(1))
    engine.finish()
    assert lane.held == 0
    assert asked.generation.complete().metrics.encode_s == 0.75


def test_a_thread_that_asks_waits_for_the_grammar_itself() -> None:
    submitted = threading.Event()
    engine = FakeEngine(on_submit=lambda sequence: submitted.set())
    future: Future[Any] = Future()
    binding, _ = bound(future, meanwhile=ENCODE)
    asked = Asked(engine, Lane(100), binding=binding)
    waiting = on_thread(asked.preparation.here)
    assert submitted.wait(GUARD)
    assert not waiting.done()
    future.set_result("automaton")
    waiting.result(GUARD)

    assert requests(engine) == [ENCODE, WHOLE]


@pytest.mark.parametrize("here", [True, False])
def test_a_grammar_that_cannot_be_had_is_the_end_of_its_request(here: bool) -> None:
    engine, threads = FakeEngine(), Threads()
    future: Future[Any] = Future()
    binding, _ = bound(future)
    asked = Asked(engine, Lane(100), binding=binding)
    if here:
        future.set_exception(SchemaError("no such keyword", "nope", "/properties/a"))
        asked.preparation.here()
    else:
        asked.preparation.on(threads)
        threads.work()
        future.set_exception(SchemaError("no such keyword", "nope", "/properties/a"))
        threads.work()

    assert requests(engine) == []
    with pytest.raises(SchemaError, match="no such keyword") as raised:
        asked.generation.complete()
    assert (raised.value.keyword, raised.value.where) == ("nope", "/properties/a")


@pytest.mark.parametrize("here", [True, False])
def test_an_engine_that_refuses_the_encoding_is_the_end_of_the_request(here: bool) -> None:
    def refuse(sequence: Any) -> None:
        raise EngineDiedError("the engine has stopped")

    engine, threads = FakeEngine(on_submit=refuse), Threads()
    future: Future[Any] = Future()
    binding, told = bound(future, meanwhile=ENCODE)
    asked = Asked(engine, Lane(100), binding=binding)
    if here:
        on_thread(asked.preparation.here).result(GUARD)
    else:
        asked.preparation.on(threads)
        threads.work()

    assert asked.generation.delivery.started.done()
    with pytest.raises(EngineDiedError):
        asked.generation.check()
    assert future.cancelled()
    assert not told


@pytest.mark.parametrize("end", ["cancel", "drop"])
def test_a_request_that_is_given_up_gives_up_its_grammar_and_the_encoding(end: str) -> None:
    engine, lane, threads = FakeEngine(), Lane(100), Threads()
    future: Future[Any] = Future()
    binding, told = bound(future, meanwhile=ENCODE)
    asked = Asked(engine, lane, binding=binding)
    asked.preparation.on(threads)
    threads.work()
    if end == "cancel":
        asked.generation.cancel()
    else:
        del asked.generation

    assert future.cancelled()
    assert engine.cancelled == [engine.sequences[0]]
    while threads.jobs:
        threads.work()
    assert (requests(engine), told, lane.held) == ([ENCODE], [], 0)


def test_a_deadline_ends_the_wait_for_a_grammar() -> None:
    engine = FakeEngine()
    future: Future[Any] = Future()
    binding, told = bound(future)
    asked = Asked(engine, Lane(100), 0.01, binding=binding)
    on_thread(asked.preparation.here).result(GUARD)

    assert (requests(engine), told) == ([], [])
    assert future.cancelled()
    with pytest.raises(DeadlineError):
        asked.generation.check()


def test_a_realtime_call_hurries_when_its_grammar_is_there() -> None:
    engine, threads = FakeEngine(), Threads()
    future: Future[Any] = Future()
    binding, _ = bound(future)
    Asked(engine, Lane(100), realtime=True, binding=binding).preparation.on(threads)
    threads.work()
    future.set_result("automaton")

    assert (len(threads.urgent), len(threads.jobs)) == (1, 0)


def test_a_grammar_that_comes_when_the_threads_have_ended_is_no_ones_trouble() -> None:
    engine, threads = FakeEngine(), Threads()
    future: Future[Any] = Future()
    binding, _ = bound(future)
    asked = Asked(engine, Lane(100), binding=binding)
    asked.preparation.on(threads)
    threads.work()
    threads.closed = True
    future.set_result("automaton")

    with pytest.raises(ModelError, match="closed"):
        asked.generation.complete()

"""The threads around the engine in every order that a seed draws: loop, handles, memory gate, pool of images."""

import itertools
from typing import Any

import pytest
from PIL import Image

from photonlite.api import session
from photonlite.config import ImageLimits
from photonlite.engine import handle, memory_gate
from photonlite.engine import loop as loop_module
from photonlite.engine.handle import RequestHandle, TokenStream
from photonlite.engine.loop import EngineLoop
from photonlite.engine.memory_gate import GateLane
from photonlite.errors import ModelError, RequestCancelledError
from photonlite.images import pool, resize
from photonlite.images.crops import CropSpec
from photonlite.request import Request, SamplingSettings, Token
from photonlite.sequence import Sequence, Sink
from tests.api.fakes import ROOM, Source, Threads, make_session, task
from tests.engine.fakes import PREFIX, Bench, FakeImage, FakeSink, Words, ends_at
from tests.interleaving import Interleaving

SEEDS = [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 20)) for seed in range(60)]
LONG_ANSWER = 400
"""Tokens of an answer that is always cancelled before its end."""


class Engine:
    """An engine loop, and the requests that it has accepted."""

    def __init__(self, world: Interleaving, *, tokens: int = 3) -> None:
        self.world = world
        self.bench = Bench(ends_at(tokens), pages=1000, clock=lambda: world.now)
        self.loop = EngineLoop(self.bench.core)
        self.sequences: list[Sequence] = []
        self._numbers = itertools.count()

    def submit(
        self, request: Request, sink: Sink, images: Any = (), *, submitted: float = 0.0, **options: object
    ) -> Sequence:
        sequence = Sequence(next(self._numbers), request, sink, PREFIX if images else 1, *images)
        self.loop.submit(sequence)
        self.sequences.append(sequence)
        return sequence

    def check(self) -> None:
        self.loop.check()

    def cancel(self, sequence: Sequence) -> None:
        self.loop.cancel(sequence)

    def close(self, *, drain: bool) -> None:
        self.loop.close(drain=drain)

    def ask(self, image: FakeImage | None = None) -> Sequence | None:
        """Submit a request; None where the engine is closed."""
        try:
            return self.submit(request(), FakeSink(), () if image is None else (image,))
        except ModelError:
            return None

    def await_end(self, sequence: Sequence) -> FakeSink:
        sink = sequence.sink
        assert isinstance(sink, FakeSink)
        self.world.until(lambda: bool(sink.ends))
        return sink


def request(budget: int = LONG_ANSWER + 1) -> Request:
    return Request("query", (Token(1),), Words(budget), budget, SamplingSettings())


@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_is_refused_or_answered_once_and_no_wake_up_is_lost(seed: int) -> None:
    drain = seed % 2 == 0
    with Interleaving(seed, loop_module) as world:
        engine = Engine(world)
        taken: list[Sequence] = []

        def ask() -> None:
            for _ in range(2):
                sequence = engine.ask()
                if sequence is not None:
                    taken.append(sequence)
                    engine.await_end(sequence)

        def wait_for_crops() -> None:
            image = FakeImage("slow", cut=False)
            cutting = False

            def request_crops(pages: object = None) -> None:
                nonlocal cutting
                if not cutting:
                    cutting = True
                    world.spawn(cut, name="cutter")

            def cut() -> None:
                image.cut = True
                engine.loop.wake()

            image.request_crops = request_crops  # type: ignore[method-assign]
            sequence = engine.ask(image)
            if sequence is not None:
                taken.append(sequence)
                engine.await_end(sequence)

        for name in ("first", "second"):
            world.spawn(ask, name=name)
        world.spawn(wait_for_crops, name="about an image")
        world.spawn(lambda: engine.loop.close(drain=drain), name="closer")
        world.run()

    for sequence in taken:
        assert isinstance(sequence.sink, FakeSink)
        (end,) = sequence.sink.ends
        assert end.error is None or (not drain and isinstance(end.error, ModelError))
    assert not engine.loop.alive
    assert not engine.bench.core.open
    assert engine.bench.runner.calls[-1] == ("close", -1)
    assert world.now == 0, "the engine slept while it had something to do"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancelled_request_ends_soon_also_while_the_engine_drains(seed: int) -> None:
    with Interleaving(seed, loop_module) as world:
        engine = Engine(world, tokens=LONG_ANSWER)
        sequence = engine.ask()
        assert sequence is not None

        def cancel() -> None:
            world.until(lambda: bool(sequence.tokens))
            engine.loop.cancel(sequence)
            engine.await_end(sequence)

        world.spawn(cancel, name="canceller")
        world.spawn(lambda: engine.loop.close(drain=True), name="closer")
        world.run()

    assert isinstance(sequence.error, RequestCancelledError)
    assert engine.bench.everything_is_free()
    assert world.now == 0


# Many, because a request has to slip in between two lines of the closing thread.
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
def test_a_request_submitted_while_the_engine_closes_is_refused_or_answered(part: int) -> None:
    for seed in range(100 * part, 100 * (part + 1)):
        with Interleaving(seed, loop_module) as world:
            ask_and_close(world, Engine(world))


def ask_and_close(world: Interleaving, engine: Engine) -> None:
    def ask() -> None:
        sequence = engine.ask()
        if sequence is not None:
            assert engine.await_end(sequence).ends[0].error is None

    world.spawn(ask, name="asks")
    world.spawn(lambda: engine.loop.close(drain=True), name="closer")
    world.run()


class Prepared(FakeImage):
    """The members of a `PreparedImage` that are used."""

    preprocess_s = 0.0


class Call:
    """One call about an image, in a session with room for one image at a time."""

    def __init__(self, asked: session.Session, **settings: Any) -> None:
        image = Prepared(f"image {id(self)}")
        self.session = asked
        self.handle, self._steps = asked._begin(task(request(**settings), Source(lambda: image)))  # type: ignore[arg-type, return-value]
        asked.open.add(self.handle)
        self.stream: TokenStream | None = TokenStream(self.handle)
        self.ends = 0
        on_end = self.handle._on_end

        def count(ended: RequestHandle) -> None:
            self.ends += 1
            assert on_end is not None
            on_end(ended)

        self.handle._on_end = count

    def run(self) -> None:
        try:
            self.session._run_steps(self.handle, self._steps, waits=lambda: True)
        except Exception as error:  # as `Session._start` does
            self.handle.fail(error)

    def cancel(self) -> None:
        self.handle.cancel()

    def drop(self) -> None:
        self.stream = None

    @property
    def error(self) -> BaseException | None:
        return self.handle.future.exception(timeout=0)


class Pool(Threads):
    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("given_up", ["cancel", "drop"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_ends_once_releases_its_permit_and_leaves_nothing_in_the_engine(seed: int, given_up: str) -> None:
    with Interleaving(seed, loop_module, handle, memory_gate, session) as world:
        engine, short = Engine(world, tokens=LONG_ANSWER), Engine(world)
        long_session, short_session = make_session(engine, Pool(), ROOM), make_session(short, Pool(), ROOM)
        gate = long_session.gate = short_session.gate
        asked = [Call(short_session), Call(long_session), Call(short_session)]

        def wait(call: Call) -> None:
            call.run()
            call.handle.wait()
            call.drop()

        def answer(call: Call) -> None:
            call.run()
            world.until(call.handle.future.done)
            call.drop()

        def close() -> None:
            long_session.close(drain=True)
            short_session.close(drain=True)

        world.spawn(wait, asked[0], name="first")
        world.spawn(answer, asked[1], name="given up")
        world.spawn(wait, asked[2], name="third")
        world.spawn(getattr(asked[1], given_up), name="gives up")
        world.spawn(close, name="closer")
        world.run()

    assert [call.ends for call in asked] == [1, 1, 1]
    assert (asked[0].error, asked[2].error) == (None, None)
    assert isinstance(asked[1].error, RequestCancelledError)
    assert all(isinstance(one.error, RequestCancelledError) for one in engine.sequences)
    assert (gate.held, gate.waiting, long_session.open, short_session.open) == (0, 0, set(), set())
    assert engine.bench.everything_is_free()
    assert short.bench.everything_is_free()
    assert world.now == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_room_is_never_granted_twice_and_every_call_is_admitted(seed: int) -> None:
    with Interleaving(seed, memory_gate) as world:
        lane = GateLane(100)
        inside: dict[int, int] = {}

        def come_and_go(number: int, size: int) -> None:
            permit = lane.request(size)
            if (granted := permit.granted) is not None:
                world.until(granted.done)
            inside[number] = size
            assert sum(inside.values()) <= 100 or len(inside) == 1
            permit.resize(size - 1)
            del inside[number]
            permit.release()

        def give_up(size: int) -> None:
            lane.request(size).release()

        for number, size in enumerate((60, 30, 500, 90, 20)):
            world.spawn(come_and_go, number, size)
        world.spawn(give_up, 70)
        world.run()

    assert (lane.held, lane.waiting) == (0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_requested_crops_arrive_and_are_announced_while_the_pool_closes(seed: int) -> None:
    with Interleaving(seed, pool, resize) as world:
        ready: list[None] = []
        image_pool = pool.ImagePool(CropSpec(20, 4, 1, 6), ImageLimits(), 2, on_ready=lambda: ready.append(None))
        images = [image_pool.prepare(Image.new("RGB", (6, 4), colour)) for colour in ("red", "blue")]
        done: list[int] = []

        def ask(image: Any) -> None:
            image.request_crops()
            world.until(lambda: image.crops is not None or image.failure is not None)
            world.until(lambda: bool(ready))
            image.drop_crops()
            image.request_crops()
            world.until(lambda: image.crops is not None or image.failure is not None)

        def submit() -> None:
            for number in range(3):
                try:
                    image_pool.submit(lambda number=number: done.append(number))  # type: ignore[misc]
                except ModelError:
                    done.append(number)
            world.until(lambda: sorted(done) == [0, 1, 2])

        for image in images:
            world.spawn(ask, image, name=image.key[:4])
        world.spawn(images[0].request_crops, name="also asks")
        world.spawn(submit, name="submits")
        world.spawn(image_pool.close, name="closer")
        world.run()

    assert len(ready) >= 2
    assert all(isinstance(one.failure, ModelError | None) for one in images)

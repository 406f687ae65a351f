"""Deadlines, real-time requests and large queues, on a virtual clock."""

import dataclasses
import gc
import weakref
from collections.abc import Callable

import pytest

from photonlite.engine.core import EngineCore
from photonlite.errors import DeadlineError
from photonlite.images.crops import ImageCrops
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.realtime import RealtimePolicy
from photonlite.sequence import Sequence
from tests.engine.counting import Counted, crowd
from tests.engine.fakes import Bench, FakeImage, FakeSink, Words, ends_at


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def drops(core: EngineCore) -> tuple[int, int, int]:
    metrics = core.metrics
    return metrics.dropped_waiting, metrics.dropped_hopeless, metrics.dropped_running


def slow(clock: Clock) -> Bench:
    """An engine with measurements: a crop takes 0.1 s, a position 0.01 s."""
    bench = Bench(ends_at(3), clock=clock)
    bench.scheduler.policy.crops.observe(10, 1.0)
    bench.scheduler.policy.prompts.observe(10, 0.1)
    return bench


@pytest.mark.parametrize("image", [None, FakeImage("a"), FakeImage("late", cut=False)])
def test_nothing_is_launched_for_a_request_whose_deadline_has_passed(clock: Clock, image: FakeImage | None) -> None:
    bench = Bench(ends_at(3), clock=clock)
    sink = bench.ask(image=image, deadline=101.0)
    clock.now = 101.0
    bench.run()

    assert isinstance(sink.ends[0].error, DeadlineError)
    assert (bench.runner.steps, drops(bench.core)) == ([], (1, 0, 0))
    assert image is None or image.asked == 0


def test_a_deadline_that_passes_while_a_request_runs_is_counted_separately(clock: Clock) -> None:
    bench = Bench(ends_at(50), clock=clock)
    bench.ask(deadline=101.0)
    for _ in range(4):
        bench.core.tick()
    clock.now = 102.0
    bench.run()

    assert drops(bench.core) == (0, 0, 1)
    assert bench.core.metrics.requests_failed == 1


@pytest.mark.parametrize(("seconds", "hopeless"), [(0.41, True), (0.43, False)])
def test_a_realtime_request_that_cannot_be_in_time_is_given_up_at_once(
    clock: Clock, seconds: float, hopeless: bool
) -> None:
    bench = slow(clock)
    sink = bench.ask(image=FakeImage("a"), deadline=100 + seconds, realtime=True)  # 3 crops, 12 positions
    bench.core.tick()

    assert bool(sink.ends) == hopeless
    assert drops(bench.core) == (0, int(hopeless), 0)
    assert bool(bench.runner.steps) != hopeless
    if hopeless:
        assert str(sink.ends[0].error).startswith("image and prompt alone take about 0.42 s, and the deadline is in")


def test_a_bulk_request_is_not_given_up_before_its_deadline(clock: Clock) -> None:
    bench = slow(clock)
    sink = bench.ask(image=FakeImage("a"), deadline=100.1)
    bench.core.tick()

    assert not sink.ends


def test_a_cached_image_is_not_counted_towards_a_deadline(clock: Clock) -> None:
    bench = slow(clock)
    bench.ask(image=FakeImage("a"))
    bench.run()
    sink = bench.ask(image=FakeImage("a"), deadline=100.1, realtime=True)
    bench.run()

    assert sink.ends[0].error is None


def test_a_request_that_has_begun_is_not_given_up(clock: Clock) -> None:
    bench = slow(clock)
    sink = bench.ask(image=FakeImage("a"), deadline=100.5, realtime=True)
    bench.core.tick()
    clock.now = 100.45
    bench.run()

    assert sink.ends[0].error is None


def test_one_of_four_hopeless_requests_is_tried_while_measurements_are_old(clock: Clock) -> None:
    bench = slow(clock)
    sinks = [bench.ask(image=FakeImage(str(n)), deadline=100.2, realtime=True) for n in range(4)]
    bench.run()

    assert [isinstance(sink.ends[0].error, DeadlineError) for sink in sinks] == [True, True, True, False]


def test_measurements_are_trusted_again_once_renewed(clock: Clock) -> None:
    bench = Bench(ends_at(3), clock=clock)
    bench.scheduler.prioritise()
    policy = bench.scheduler.policy
    assert isinstance(policy, RealtimePolicy)

    def given_up(crops: int) -> int:
        count = 0
        while policy._trusts_measurements(crops):
            count += 1
        return count

    assert given_up(3) == 3
    policy.prompts.observe(10, 0.1)
    assert given_up(3) == 0
    assert given_up(0) == 3
    policy.crops.observe(1, 0.1)
    policy.prompts.observe(10, 0.1)
    assert given_up(3) == 3


def test_realtime_requests_are_near_for_a_second_after_the_last_one(clock: Clock) -> None:
    bench = Bench(ends_at(2), clock=clock)
    bench.scheduler.prioritise()
    policy = bench.scheduler.policy
    assert isinstance(policy, RealtimePolicy)
    near = [policy.is_near(clock.now)]
    bench.ask(realtime=True)
    near.append(policy.is_near(clock.now))
    bench.run()
    for clock.now in (100.9, 101.1):
        near.append(policy.is_near(clock.now))

    assert near == [False, True, True, False]


def beating(clock: Clock, *, decoded: bool) -> Bench:
    """An engine with a real-time loop of 0.1 s, the next request expected at 100.4, and waiting bulk work."""
    bench = Bench(ends_at(40), clock=clock)
    if decoded:
        bench.ask()
    for _ in range(4):
        bench.ask(realtime=True, budget=2, grammar=Words(2))
        for _ in range(8):
            bench.core.tick()
        clock.now += 0.1
    bench.ask(image=FakeImage("bulk"))
    return bench


@pytest.mark.parametrize("decoded", [False, True])
def test_no_bulk_image_is_launched_when_a_real_time_request_is_about_to_come(clock: Clock, decoded: bool) -> None:
    bench = beating(clock, decoded=decoded)
    bench.runner.steps.clear()
    clock.now = 100.398
    for _ in range(4):
        bench.core.tick()
    assert {step.kind for step in bench.runner.steps} == ({"decode"} if decoded else set())
    assert bench.core.wake_at == pytest.approx(100.402)

    clock.now = 100.4021  # it has not come: the time to look again has passed
    assert bench.core.wake_at == pytest.approx(100.402)
    bench.core.tick()
    assert "encode" in {step.kind for step in bench.runner.steps}
    assert bench.core.wake_at is None


def test_a_bulk_image_that_is_launched_well_before_is_not_held_back(clock: Clock) -> None:
    bench = beating(clock, decoded=False)
    bench.runner.steps.clear()
    clock.now = 100.39
    bench.core.tick()

    assert [step.kind for step in bench.runner.steps] == ["encode"]


def test_bulk_lets_a_real_time_request_whose_image_is_being_cut_go_first(clock: Clock) -> None:
    bench = Bench(ends_at(3), clock=clock)
    image = FakeImage("robot", cut=False)
    bench.ask(image=image, realtime=True)
    bench.ask(image=FakeImage("bulk"))
    bench.core.tick()
    assert bench.runner.steps == []

    clock.now += 0.0031
    bench.core.tick()
    assert [group.job.key for step in bench.runner.steps for group in step.plan.groups] == ["bulk"]


def test_open_requests_are_counted_by_class_however_they_end(clock: Clock) -> None:
    bench = Bench(ends_at(2), clock=clock)
    for realtime in (True, False, True):
        bench.ask(realtime=realtime, deadline=101.0)
    assert (bench.core.open_realtime, len(bench.core.open)) == (2, 3)
    bench.core.cancel(bench.sequences[0])
    assert bench.core.open_realtime == 1
    clock.now = 102.0
    bench.run()

    assert (bench.core.open_realtime, bench.core.open) == (0, set[Sequence]())


class Broken(FakeImage):
    @property
    def crops(self) -> ImageCrops | None:
        raise KeyError("crops")


def test_an_image_that_raises_while_its_deadline_is_estimated_fails_its_request_alone(clock: Clock) -> None:
    bench = slow(clock)
    broken = bench.ask(image=Broken("a"), deadline=clock.now + 1000, realtime=True)
    good = bench.ask(image=FakeImage("b"), deadline=clock.now + 1000, realtime=True)
    bench.core.tick()
    assert isinstance(broken.ends[0].error, KeyError)
    bench.run()

    assert len(good.tokens) == 3
    assert bench.everything_is_free()


@pytest.mark.parametrize(
    "token",
    [Token(-1), Token(100), Token("a"), Token(1, (0.5, 0.5, 0.5)), Token(1, ("a",))],  # type: ignore[arg-type]
    ids=["negative", "unknown", "text", "three", "words"],
)
def test_a_prompt_that_would_fail_a_whole_step_is_refused(token: Token) -> None:
    bench = Bench(ends_at(3))
    bench.scheduler.limits = dataclasses.replace(bench.scheduler.limits, vocab_size=100)
    request = Request("query", (Token(1), token), Words(3), 3, SamplingSettings())
    with pytest.raises((ValueError, TypeError)):
        bench.hand_in(Sequence(0, request, FakeSink(), 1))

    assert not bench.core.open


# ---- crowds


def busy(clock: Clock, rows: int = 1, places: int = 0) -> Bench:
    """An engine that decodes some long requests, with room for more if there are more places."""
    bench = Bench(ends_at(10**6), clock=clock, pages=20_000, max_batch=places or rows)
    for _ in range(rows):
        bench.ask(budget=10_000)
    for _ in range(3):
        bench.core.tick()
    return bench


def looks_at_each(count: int, image: str | None, end: Callable[[Bench, Clock, list[Sequence]], None]) -> float:
    """Return how often each of many requests was read while they ended."""
    clock = Clock()
    bench = busy(clock)
    gone = crowd(bench, count, deadline=200.0, image=image)
    bench.core.tick()
    Counted.looks = 0
    end(bench, clock, gone)
    looks = Counted.looks
    assert all(one.finalized for one in gone)
    assert len(bench.core.open) == 1
    return looks / count


def cancel_oldest_first(bench: Bench, clock: Clock, gone: list[Sequence]) -> None:
    for place, one in enumerate(gone):
        bench.core.cancel(one)
        if place % 32 == 0:
            bench.core.tick()


def cancel_newest_first(bench: Bench, clock: Clock, gone: list[Sequence]) -> None:
    cancel_oldest_first(bench, clock, gone[::-1])


def expire(bench: Bench, clock: Clock, gone: list[Sequence]) -> None:
    clock.now = 300.0
    for _ in range(len(gone)):
        bench.core.tick()
        if len(bench.core.open) == 1:
            return


@pytest.mark.long
@pytest.mark.parametrize("end", [cancel_oldest_first, cancel_newest_first, expire])
@pytest.mark.parametrize("image", [None, "same", "image {}"])
def test_ending_a_request_costs_as_much_among_thousands_as_among_hundreds(
    image: str | None, end: Callable[[Bench, Clock, list[Sequence]], None]
) -> None:
    few, many = (looks_at_each(count, image, end) for count in (200, 3_200))

    assert many < 1.5 * few  # comparisons in sorted lists: four more for sixteen times as many


def test_finding_the_next_leader_of_an_image_does_not_scan_the_queue(clock: Clock) -> None:
    def looks(count: int) -> int:
        bench = busy(clock)
        gone = crowd(bench, count, image="same")
        for one in gone:
            one.image.cut = True  # type: ignore[union-attr]
        bench.core.tick()
        assert bench.scheduler.encoder.jobs
        Counted.looks = 0
        for one in gone[:100]:
            bench.core.cancel(one)
            bench.scheduler.encoder.drop_idle(bench.scheduler._find_heir)
        return Counted.looks

    assert looks(3_200) < 1.5 * looks(200)


def test_running_requests_are_decoded_while_thousands_expire_unlaunched(clock: Clock) -> None:
    bench = busy(clock, places=4)
    crowd(bench, 1_000, deadline=200.0)
    bench.runner.steps.clear()
    clock.now = 300.0
    left = []
    while len(bench.core.open) > 1:
        bench.core.tick()
        left.append(len(bench.core.open))

    assert left == [*range(1_001 - 64, 1, -64), 1]
    assert [[row.sequence.number for row in step.rows] for step in bench.runner.steps] == [[0]] * len(left)
    assert drops(bench.core) == (1_000, 0, 0)
    waits = bench.ask()
    bench.core.cancel(bench.sequences[0])
    for _ in range(4):
        bench.core.tick()
    assert waits.tokens  # the next one is admitted as ever


@pytest.mark.long
@pytest.mark.parametrize("image", [None, "same", "image {}"])
@pytest.mark.parametrize("realtime", [True, False])
def test_a_tick_examines_no_more_of_thousands_of_waiting_requests_than_of_a_few(
    clock: Clock, image: str | None, realtime: bool
) -> None:
    def looks(count: int) -> int:
        bench = busy(clock, rows=8)
        bench.scheduler.policy.prompts.observe(10, 1e-6)
        crowd(bench, 16, realtime=True, deadline=1e6, image=image)  # as many as run at a time, beside bulk
        for _ in range(4):
            bench.core.tick()
        crowd(bench, count, realtime=realtime, deadline=1e6, image=image)
        bench.core.tick()  # newcomers are looked at once
        Counted.looks = 0
        for _ in range(20):
            bench.core.tick()
        return Counted.looks

    assert looks(3_200) <= 1.1 * looks(32)


@pytest.mark.long
def test_a_request_that_was_cancelled_leaves_nothing_behind(clock: Clock) -> None:
    bench = busy(clock)
    (gone,) = crowd(bench, 1, deadline=1e6, image="large")
    image = weakref.ref(gone.image)
    bench.core.cancel(gone)
    bench.sequences.remove(gone)
    del gone
    gc.collect()

    assert image() is None

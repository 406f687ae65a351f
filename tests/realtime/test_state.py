import math

import pytest

from photonlite.errors import DeadlineError, InputError, RequestCancelledError, SettingsError
from photonlite.realtime.frames import FrameResult, Question
from photonlite.realtime.state import LoopState
from tests.realtime.simulator import Simulation


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def loop_state(clock: Clock, *, deadline_ms: float | None = None, in_flight: int = 1) -> LoopState:
    return LoopState(Question.of("detect", object="mug", deadline_ms=deadline_ms), clock, in_flight=in_flight)


def answered(state: LoopState, clock: Clock, seconds: float) -> FrameResult:
    state.submit("image")
    job = state.begin()
    assert job is not None
    clock.now += seconds
    result = state.finish(job, {})
    assert result is not None
    return result


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 400, 40))
def test_every_frame_is_counted_once_in_random_histories(first: int) -> None:
    for seed in range(first, first + 40):
        Simulation(seed).run(200)


@pytest.mark.long
def test_simulations_reach_every_way_a_frame_can_end() -> None:
    drops: dict[str, int] = {}
    answers = late = 0
    for seed in range(60):
        simulation = Simulation(seed)
        simulation.run(200)
        stats = simulation.state.stats()
        answers, late = answers + stats.answered, late + stats.late
        for cause, count in stats.dropped.items():
            drops[cause] = drops.get(cause, 0) + count

    assert min(drops.values()) > 20
    assert min(answers, late) > 20


def test_the_newest_frame_wins_and_the_older_one_is_counted(clock: Clock) -> None:
    state = loop_state(clock)
    for image in ("a", "b", "c"):
        state.submit(image)

    job = state.begin()

    assert job is not None
    assert (job.frame.image, job.frame.number) == ("c", 2)
    assert state.stats().dropped["superseded"] == 2


def test_a_waiting_frame_is_asked_the_question_valid_when_it_begins(clock: Clock) -> None:
    state = loop_state(clock)
    state.submit("a")
    state.change({"object": "key"})

    job = state.begin()

    assert job is not None
    assert job.question.arguments == {"object": "key"}


def test_a_refused_change_changes_nothing(clock: Clock) -> None:
    state = loop_state(clock)

    with pytest.raises(InputError):
        state.change({"object": "key", "length": "short"})
    assert state.question.arguments == {"object": "mug"}


def test_a_deadline_counts_from_the_submission(clock: Clock) -> None:
    state = loop_state(clock, deadline_ms=33)
    state.submit("a")
    clock.now += 0.013

    job = state.begin()

    assert job is not None
    assert job.deadline_s == pytest.approx(0.020)


def test_a_late_result_is_handed_out_and_counted_as_missed(clock: Clock) -> None:
    state = loop_state(clock, deadline_ms=33)

    assert answered(state, clock, 0.033).met_deadline
    assert not answered(state, clock, 0.034).met_deadline
    stats = state.stats()
    assert (stats.answered, stats.late, stats.missed) == (2, 1, 1)


def test_a_frame_given_up_at_its_deadline_is_counted_as_dropped(clock: Clock) -> None:
    state = loop_state(clock, deadline_ms=33)
    state.submit("a")
    job = state.begin()
    assert job is not None

    assert state.fail(job, DeadlineError("too late")) is None
    stats = state.stats()
    assert (stats.failed, stats.dropped["deadline"], stats.missed) == (0, 1, 1)


def test_failures_are_counted_by_error_name(clock: Clock) -> None:
    state = loop_state(clock)
    for error in (ValueError("a"), ValueError("b"), OSError("c")):
        state.submit("a")
        job = state.begin()
        assert job is not None
        failure = state.fail(job, error)
        assert failure is not None
        assert failure.error is error
    assert state.stats().failures == {"ValueError": 2, "OSError": 1}


def test_a_cancelled_request_is_a_failure_while_the_loop_is_open(clock: Clock) -> None:
    state = loop_state(clock)
    state.submit("a")
    job = state.begin()
    assert job is not None

    assert state.fail(job, RequestCancelledError("by the model")) is not None


def test_times_and_rates_are_those_of_the_clock(clock: Clock) -> None:
    state = loop_state(clock)
    for _ in range(20):  # a frame each 100 ms, each answered after 30 ms
        answered(state, clock, 0.030)
        clock.now += 0.070
    stats = state.stats()

    assert (stats.elapsed_s, stats.rate, stats.mean_rate) == pytest.approx((2.0, 10.0, 10.0))
    assert (stats.latency.p50, stats.latency.p99) == pytest.approx((0.030, 0.030))
    assert stats.age.p50 == pytest.approx(0.130)  # just before the next one came
    assert stats.jitter_s == pytest.approx(0, abs=1e-9)


def test_the_rate_covers_recent_results_and_the_mean_rate_all(clock: Clock) -> None:
    state = loop_state(clock)
    for _ in range(10):
        answered(state, clock, 0.1)
    clock.now += 9

    stats = state.stats()

    assert stats.rate == 0
    assert stats.mean_rate == pytest.approx(1)


def test_time_stops_with_the_loop(clock: Clock) -> None:
    state = loop_state(clock)
    answered(state, clock, 0.5)
    state.close(drain=True)
    state.end()
    clock.now += 60

    assert (state.stats().elapsed_s, state.stats().rate) == pytest.approx((0.5, 2.0))


def test_unmeasured_values_are_none_in_json(clock: Clock) -> None:
    stats = loop_state(clock).stats()

    assert math.isnan(stats.latency.p50)
    assert stats.to_dict()["latency"] == {"p50": None, "p95": None, "p99": None}
    assert stats.to_dict()["missed"] == 0


def test_a_closed_loop_refuses_frames(clock: Clock) -> None:
    state = loop_state(clock)
    state.close(drain=True)

    with pytest.raises(InputError, match="closed"):
        state.submit("a")


@pytest.mark.parametrize(("name", "value"), [("in_flight", 0), ("in_flight", 1.5), ("window", 1)])
def test_impossible_sizes_are_refused(clock: Clock, name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        LoopState(Question.of("detect", object="mug"), clock, **{name: value})

"""When the next real-time request is expected, and how long the device is kept idle for it."""

import pytest

from photonlite.scheduler.arrivals import ArrivalPredictor


def after(*times: float) -> ArrivalPredictor:
    arrivals = ArrivalPredictor()
    for now in times:
        arrivals.note_arrival(now)
    return arrivals


def kept_idle(arrivals: ArrivalPredictor, now: float) -> float | None:
    """Milliseconds for which the device is kept idle."""
    end = arrivals.idle_until(now, waiting=False, bulk_waits=True)
    return None if end is None else pytest.approx(1e3 * (end - now), abs=1e-6)  # type: ignore[no-any-return]


def test_a_steady_loop_is_expected_after_another_interval() -> None:
    arrivals = after(10.0, 10.1, 10.2)  # the next one at 10.3

    assert kept_idle(arrivals, 10.295) is None
    assert kept_idle(arrivals, 10.297) == 5.0
    assert kept_idle(arrivals, 10.301) == 1.0
    assert kept_idle(arrivals, 10.303) is None  # it does not come: others go on


@pytest.mark.parametrize("times", [(), (10.0,), (10.0, 10.1), (10.0, 10.1, 10.3), (10.0, 10.3, 10.4)])
def test_no_request_is_expected_before_two_equal_intervals(times: tuple[float, ...]) -> None:
    arrivals = after(*times)

    assert all(kept_idle(arrivals, 10.0 + step / 1000) is None for step in range(1000))


def test_a_little_jitter_is_still_a_rhythm() -> None:
    assert kept_idle(after(10.0, 10.1, 10.19), 10.285) == 2.0  # in the middle of both intervals: 10.285


def test_loops_slower_than_once_a_second_are_not_waited_for() -> None:
    assert kept_idle(after(10.0, 11.5, 13.0), 14.5) is None


def test_at_most_a_quarter_of_a_fast_loops_interval_is_kept_idle_before_it() -> None:
    arrivals = after(10.0, 10.008, 10.016)

    assert kept_idle(arrivals, 10.0215) is None
    assert kept_idle(arrivals, 10.0225) == 3.5


def test_requests_are_near_for_a_second_of_the_clocks_unit() -> None:
    for second in (1.0, 1000.0):
        arrivals = ArrivalPredictor(second)
        assert not arrivals.is_near(0.0)
        arrivals.note_end(10.0)
        assert arrivals.is_near(10.0 + 0.99 * second)
        assert not arrivals.is_near(10.0 + 1.01 * second)


def test_the_device_waits_a_moment_for_a_request_whose_image_is_being_cut() -> None:
    arrivals = after(10.0)

    assert arrivals.idle_until(10.001, waiting=True, bulk_waits=True) == pytest.approx(10.003)
    assert arrivals.idle_until(10.001, waiting=False, bulk_waits=True) is None
    assert arrivals.idle_until(10.0031, waiting=True, bulk_waits=True) is None  # whatever keeps it, others go on


def test_requests_that_keep_coming_and_are_never_ready_hold_bulk_work_back_only_once() -> None:
    arrivals, held = ArrivalPredictor(), []
    for step in range(3_000):  # of 0.1 ms; one comes at each
        now = 10.0 + step / 10_000
        arrivals.note_arrival(now)
        held.append(arrivals.idle_until(now, waiting=True, bulk_waits=True) is not None)
        if not held[-1]:
            arrivals.note_launch(realtime=False)

    assert 85 <= sum(held) <= 91  # nine milliseconds
    assert not any(held[91:])


def test_the_idle_budget_is_restored_when_both_classes_have_been_launched() -> None:
    budget = ArrivalPredictor(1000.0)

    def until(now: float) -> float | None:
        end = budget.bound_idle(now, 100.0, bulk_waits=True)
        return None if end is None else pytest.approx(end)  # type: ignore[no-any-return]

    assert until(0.0) == 9.0
    assert until(9.0) is None
    budget.note_launch(realtime=False)
    assert until(9.5) is None  # no real-time request has been launched since
    budget.note_launch(realtime=True)
    assert until(10.0) is None  # bulk work still waits for its launch
    budget.note_launch(realtime=False)
    assert until(11.0) == 20.0


def test_the_idle_budget_is_spent_only_while_bulk_work_waits() -> None:
    budget = ArrivalPredictor(1000.0)
    assert budget.bound_idle(0.0, 50.0, bulk_waits=False) == 50.0
    assert budget.bound_idle(40.0, 50.0, bulk_waits=True) == pytest.approx(49.0)
    assert budget.bound_idle(45.0, 48.0, bulk_waits=True) == 48.0
    assert budget.bound_idle(90.0, 100.0, bulk_waits=True) == pytest.approx(91.0)  # idle from 40 to 48


def test_rounding_leaves_no_idle_budget_over() -> None:
    budget, now = ArrivalPredictor(), 1e6
    for _ in range(1_000):
        end = budget.bound_idle(now, now + 1.0, bulk_waits=True)
        if end is None:
            return
        now = end
    raise AssertionError("the device is kept idle for ever")

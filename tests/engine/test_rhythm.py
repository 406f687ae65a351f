"""When the next real-time request is expected, and how long the device is kept free for it."""

import pytest

from photonlite.engine.rhythm import Rhythm


def after(*times: float) -> Rhythm:
    rhythm = Rhythm()
    for now in times:
        rhythm.note(now)
    return rhythm


def kept_free(rhythm: Rhythm, now: float) -> float | None:
    """Milliseconds for which the device is kept free."""
    end = rhythm.free_until(now, waiting=False)
    return None if end is None else pytest.approx(1e3 * (end - now), abs=1e-6)  # type: ignore[no-any-return]


def test_a_steady_loop_is_expected_after_another_interval() -> None:
    rhythm = after(10.0, 10.1, 10.2)  # the next one at 10.3

    assert kept_free(rhythm, 10.295) is None
    assert kept_free(rhythm, 10.297) == 5.0
    assert kept_free(rhythm, 10.301) == 1.0
    assert kept_free(rhythm, 10.303) is None  # it does not come: others go on


@pytest.mark.parametrize("times", [(), (10.0,), (10.0, 10.1), (10.0, 10.1, 10.3), (10.0, 10.3, 10.4)])
def test_nobody_is_expected_who_has_not_come_twice_at_the_same_interval(times: tuple[float, ...]) -> None:
    rhythm = after(*times)

    assert all(kept_free(rhythm, 10.0 + step / 1000) is None for step in range(1000))


def test_a_little_jitter_is_still_a_rhythm() -> None:
    assert kept_free(after(10.0, 10.1, 10.19), 10.285) == 2.0  # in the middle of both intervals: 10.285


def test_who_comes_less_than_once_a_second_is_not_waited_for() -> None:
    assert kept_free(after(10.0, 11.5, 13.0), 14.5) is None


def test_no_more_than_a_quarter_of_a_fast_loops_time_is_kept_free_before_it() -> None:
    rhythm = after(10.0, 10.008, 10.016)

    assert kept_free(rhythm, 10.0215) is None
    assert kept_free(rhythm, 10.0225) == 3.5


def test_a_request_that_has_come_has_a_moment_to_be_ready() -> None:
    rhythm = after(10.0)

    assert rhythm.free_until(10.001, waiting=True) == pytest.approx(10.003)
    assert rhythm.free_until(10.001, waiting=False) is None
    assert rhythm.free_until(10.0031, waiting=True) is None  # whatever keeps it, others go on

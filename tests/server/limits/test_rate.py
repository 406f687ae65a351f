import pytest

from photonlite.server.limits import limiter
from photonlite.server.limits.limiter import RateLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_minutes_requests_may_come_at_once_and_then_evenly() -> None:
    clock = Clock()
    limit = RateLimit(6, clock)
    assert [limit.take("a") for _ in range(6)] == [0.0] * 6
    assert limit.take("a") == pytest.approx(10)
    clock.now += 4
    assert limit.take("a") == pytest.approx(6)  # to ask in vain costs nothing
    clock.now += 6
    assert limit.take("a") == 0
    assert limit.take("a") > 0
    clock.now += 1000
    assert [limit.take("a") for _ in range(6)] == [0.0] * 6
    assert limit.take("a") > 0


def test_callers_do_not_count_for_each_other() -> None:
    limit = RateLimit(1, Clock())
    assert (limit.take("a"), limit.take("b")) == (0, 0)


def test_of_many_callers_the_one_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "_CALLERS", 2)
    limit = RateLimit(1, Clock())
    for caller in ("a", "b", "a", "c"):  # b goes
        limit.take(caller)
    assert limit.take("a") > 0
    assert limit.take("b") == 0

import pytest

from photonlite.server.limits import limiter
from photonlite.server.limits.callers import Caller
from photonlite.server.limits.limiter import RateLimit, Shares

A, B, HEAVY = Caller("a"), Caller("b"), Caller("heavy", weight=3)


def fill(shares: Shares, caller: Caller) -> int:
    """Take units one by one until one is refused; returns how many the caller holds then."""
    while shares.take(caller):
        pass
    return shares.held(caller)


@pytest.mark.parametrize(("capacity", "held"), [(1, 1), (2, 1), (8, 7), (64, 56), (256, 224)])
def test_a_lone_caller_gets_nearly_everything(capacity: int, held: int) -> None:
    assert fill(Shares("requests", capacity), A) == held


def test_the_first_caller_gets_nothing_new_until_shares_are_even() -> None:
    shares = Shares("requests", 256)
    fill(shares, A)
    assert fill(shares, B) == 28
    while shares.held(A) > shares.held(B):
        shares.give(A)
        assert not shares.take(A) or shares.held(A) <= shares.held(B) + 1
        fill(shares, B)
    assert shares.held(A) == pytest.approx(shares.held(B), abs=2)
    assert shares.used > 0.9 * shares.capacity


def test_many_greedy_callers_leave_room_for_one_more() -> None:
    shares = Shares("requests", 256)
    greedy = [Caller(str(number)) for number in range(40)]
    for _ in range(20):
        for caller in greedy:
            shares.take(caller)
    assert shares.take(B)


def test_shares_are_in_proportion_to_weights() -> None:
    shares = Shares("requests", 1000)
    for _ in range(100):
        for caller in (A, HEAVY):
            fill(shares, caller)
            shares.give(caller, shares.held(caller) // 10)
    assert fill(shares, HEAVY) / fill(shares, A) == pytest.approx(3, rel=0.25)


def test_a_light_caller_alone_is_not_held_to_its_weight() -> None:
    assert fill(Shares("requests", 256), Caller("light", weight=0.01)) == 224


def test_the_only_request_of_a_caller_may_use_all_that_is_free() -> None:
    shares = Shares("bytes", 1000)
    assert shares.take(A, 300)
    assert shares.take(A, 700, own=300)
    assert not shares.take(A, 1, own=1000)


def test_returned_units_leave_nothing_behind() -> None:
    shares = Shares("bytes", 100)
    shares.take(A, 30)
    shares.take(A, 0)
    shares.give(A, 30)
    assert (shares.used, shares.held(A)) == (0, 0)
    assert vars(shares)["_held"] == vars(shares)["_weights"] == {}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_requests_of_a_minute_may_come_at_once_and_then_evenly() -> None:
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


def test_the_longest_silent_caller_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "_CALLERS", 2)
    limit = RateLimit(1, Clock())
    for caller in ("a", "b", "a", "c"):  # b goes
        limit.take(caller)
    assert limit.take("a") > 0
    assert limit.take("b") == 0


def test_several_requests_are_taken_from_the_rate_together_or_not_at_all() -> None:
    now = [0.0]
    rate = RateLimit(6, lambda: now[0])
    assert rate.take("a", 4) == 0
    assert rate.take("a", 4) == pytest.approx(20)
    assert rate.take("a", 2) == 0
    now[0] = 40.0
    assert rate.take("a", 4) == 0
    assert rate.take("a") > 0

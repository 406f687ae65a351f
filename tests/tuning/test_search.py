import itertools
import math
import random

import pytest

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair, Point, Table, table_of
from photonlite.tuning.search import Option, Plan, Slot, best_plan, search

TABLE = table_of([Pair(64, 0.45, 0.75), Pair(32, 0.7, 0.45)])
ENCODE = {3: 0.36 * 0.012, 6: 0.68 * 0.012, 9: 0.012}
DECODE = {2: 0.004, 4: 0.008, 6: 0.012}


def random_options(draw: random.Random) -> list[list[list[Option]]]:
    """Return up to two pieces of each kind of whole seconds, so that some best plan has whole seconds too."""
    seconds = [[draw.randint(1, 2) for _ in range(draw.randint(1, 2))] for _ in range(2)]
    return [[[(1.0, one), (draw.uniform(0.2, 0.7), one + 1)] for one in own] for own in seconds]


def least_makespan(encode: list[list[Option]], decode: list[list[Option]]) -> float:
    """Return the least makespan by trying every whole second as the begin of each piece."""
    pieces = encode + decode
    horizon = int(sum(max(seconds for _, seconds in own) for own in pieces))
    found = math.inf
    for chosen in itertools.product(*pieces):
        for begins in itertools.product(range(horizon), repeat=len(pieces)):
            slots = [(at, at + seconds, share) for at, (share, seconds) in zip(begins, chosen, strict=True)]
            end = max(slot[1] for slot in slots)
            if end < found and is_possible(Plan(tuple(slots[: len(encode)]), tuple(slots[len(encode) :]))):
                found = end
    return found


def is_possible(plan: Plan) -> bool:
    """Whether pieces of a kind follow one another, and shares of two pieces at once sum to at most 1."""
    follow = all(one[1] <= two[0] + 1e-9 for own in (plan.encode, plan.decode) for one, two in itertools.pairwise(own))
    fit = all(a[2] + b[2] <= 1 + 1e-6 for a, b in itertools.product(plan.encode, plan.decode) if meets(a, b))
    return follow and fit


def meets(one: Slot, other: Slot) -> bool:
    return one[0] < other[1] - 1e-9 and other[0] < one[1] - 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_is_possible_and_has_the_least_makespan(seed: int) -> None:
    encode, decode = random_options(random.Random(seed))

    found = best_plan(encode, decode)

    assert is_possible(found)
    assert found.makespan == least_makespan(encode, decode)


def test_a_schedule_beats_turns_and_is_possible() -> None:
    found = search(ENCODE, DECODE, TABLE)

    turns = 0.024
    assert turns / 1.25 < found.makespan < turns / 1.1
    assert round(found.encode_share, 9) in (0.45, 0.7)
    assert is_possible(found)


def test_a_schedule_has_one_division_of_the_gpu() -> None:
    found = search(ENCODE, DECODE, TABLE)

    divided = {1 - share for _, _, share in found.encode} | {share for _, _, share in found.decode}
    assert len({round(share, 9) for share in divided - {0.0, 1.0}}) == 1


def test_divisions_that_gain_nothing_leave_turns() -> None:
    found = search(ENCODE, DECODE, Table((Point(0.5, 0.3, 0.3, 0.3, 64),)))

    assert found.makespan == pytest.approx(0.024)
    assert found.encode_share == 1


def test_without_a_division_work_takes_turns() -> None:
    assert search(ENCODE, DECODE, Table(())).makespan == pytest.approx(0.024)


def test_after_the_time_limit_the_first_plan_is_returned() -> None:
    found = search(ENCODE, DECODE, TABLE, limit_s=0.0)

    assert is_possible(found)
    assert found.makespan >= search(ENCODE, DECODE, TABLE).makespan


def test_shares_of_pieces_that_meet_sum_to_one_at_most() -> None:
    assert best_plan([[(0.6, 1.0)]], [[(0.6, 1.0)]]).makespan == pytest.approx(2)
    assert best_plan([[(0.5, 1.0)]], [[(0.5, 1.0)]]).makespan == pytest.approx(1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_times_of_nothing_are_refused(seconds: float) -> None:
    with pytest.raises(TuningError, match="'encode' needs seconds above 0"):
        search({1: seconds}, DECODE, TABLE)

import itertools
import math
import random

import pytest

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair, Point, Table, table_of
from photonlite.tuning.plans import Plan, best_plan
from photonlite.tuning.problem import Cut, Operation, Piece, cuts_of
from photonlite.tuning.search import search

TABLE = table_of([Pair(64, 0.45, 0.75), Pair(32, 0.7, 0.45)])


def operations(encode: float = 0.012, step: float = 0.002, steps: int = 6) -> list[Operation]:
    crops = {3: 0.36 * encode, 6: 0.68 * encode, 9: encode}
    sizes = {size: size * step for size in (2, 4, 6) if size <= steps}
    return [
        Operation("encode", "compute", 9, crops),
        Operation("decode", "memory", steps, sizes, serial=True),
    ]


def random_cut(draw: random.Random) -> tuple[Cut, list[list[tuple[float, float]]]]:
    """Return two or three pieces of whole seconds, so that some best plan has whole seconds too."""
    resources = [draw.choice(["compute", "memory"]) for _ in range(draw.randint(2, 3))]
    pieces = tuple(Piece(f"p{i}", one, 0, 1, draw.randint(1, 2)) for i, one in enumerate(resources))  # type: ignore[arg-type]
    before = tuple(frozenset(j for j in range(i) if draw.random() < 0.25) for i in range(len(pieces)))
    options = [[(1.0, one.seconds), (draw.uniform(0.2, 0.7), one.seconds + 1)] for one in pieces]
    return Cut(pieces, before), options


def least_makespan(cut: Cut, options: list[list[tuple[float, float]]]) -> float:
    """Return the least makespan by trying every whole second as the begin of each piece."""
    horizon = int(sum(max(seconds for _, seconds in own) for own in options))
    found = math.inf
    for chosen in itertools.product(*options):
        if (least := max(seconds for _, seconds in chosen)) >= found:
            continue
        for begins in itertools.product(range(horizon), repeat=len(chosen)):
            slots = tuple(
                (begin, begin + seconds, share) for begin, (share, seconds) in zip(begins, chosen, strict=True)
            )
            if least <= Plan(slots).makespan < found and is_possible(cut, Plan(slots)):
                found = Plan(slots).makespan
    return found


def is_possible(cut: Cut, plan: Plan) -> bool:
    """Whether pieces wait for those before them, have their resource alone, and share at most the whole GPU."""
    for index, (begin, _, _) in enumerate(plan.slots):
        running = [at for at, (low, high, _) in enumerate(plan.slots) if low <= begin + 1e-9 and begin < high - 1e-9]
        waits = all(plan.slots[other][1] <= begin + 1e-9 for other in cut.before[index])
        apart = len({cut.pieces[at].resource for at in running}) == len(running)
        if not (waits and apart and sum(plan.slots[at][2] for at in running) <= 1 + 1e-6):
            return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_possible_and_has_the_least_makespan(seed: int) -> None:
    cut, options = random_cut(random.Random(seed))

    found = best_plan(cut, cut.before, options)

    assert is_possible(cut, found)
    assert found.makespan == least_makespan(cut, options)


def test_what_is_found_beats_turns_and_is_possible() -> None:
    asked = operations()

    found = search(asked, {"memory": TABLE})

    turns = 0.024
    assert turns / 1.25 < found.plan.makespan < turns / 1.1
    assert is_possible(found.cut, found.plan)


def test_parts_that_gain_nothing_leave_turns() -> None:
    asked = operations()

    found = search(asked, {"memory": Table((Point(0.5, 0.3, 0.3, 0.3, 64),))})

    assert found.plan.makespan == pytest.approx(0.024)
    assert {share for _, _, share in found.plan.slots} == {1.0}


def test_serial_pieces_follow_one_another() -> None:
    cut = next(one for one in cuts_of(operations()[1:], 3) if len(one.pieces) == 3)

    assert cut.before == (frozenset(), frozenset({0}), frozenset({0, 1}))


def test_shares_of_pieces_that_meet_sum_to_one_at_most() -> None:
    cut = Cut((Piece("a", "compute", 0, 1, 1.0), Piece("b", "memory", 0, 1, 1.0)), (frozenset(),) * 2)

    assert best_plan(cut, cut.before, [[(0.6, 1.0)]] * 2).makespan == pytest.approx(2)
    assert best_plan(cut, cut.before, [[(0.5, 1.0)]] * 2).makespan == pytest.approx(1)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (Operation("a", "compute", 1, {1: 0.0}), "'a' needs seconds above 0"),
        (Operation("a", "compute", 1, {1: float("nan")}), "'a' needs seconds above 0"),
        (Operation("a", "compute", 5, {2: 1.0}), r"\[2\], fill its batch of 5"),
    ],
)
def test_operations_that_cannot_be_cut_are_refused(asked: Operation, complaint: str) -> None:
    with pytest.raises(TuningError, match=complaint):
        search([asked], {"memory": TABLE})

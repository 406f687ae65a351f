import random

import pytest

from photonlite.errors import MissingDependencyError, TuningError
from photonlite.tuning import programme
from photonlite.tuning.interference import Pair, Point, Table, table_of
from photonlite.tuning.problem import Cut, Operation, Piece, cuts_of
from photonlite.tuning.programme import Plan, solve
from photonlite.tuning.search import search
from tests.tuning.exhaustive import enumerate_best

TABLE = table_of([Pair(64, 0.45, 0.75), Pair(32, 0.7, 0.45)])


def operations(encode: float = 0.012, step: float = 0.002, steps: int = 6) -> list[Operation]:
    crops = {3: 0.36 * encode, 6: 0.68 * encode, 9: encode}
    sizes = {size: size * step for size in (2, 4, 6) if size <= steps}
    return [
        Operation("encode", "compute", 9, crops),
        Operation("decode", "memory", steps, sizes, serial=True),
    ]


def random_cut(draw: random.Random) -> tuple[Cut, list[list[tuple[float, float]]]]:
    resources = [draw.choice(["compute", "memory", "memory"]) for _ in range(draw.randint(2, 4))]
    pieces = tuple(Piece(f"p{i}", one, 0, 1, draw.uniform(1, 4)) for i, one in enumerate(resources))  # type: ignore[arg-type]
    before = tuple(frozenset(j for j in range(i) if draw.random() < 0.25) for i in range(len(pieces)))
    options = []
    for piece in pieces:
        shares = sorted(draw.uniform(0.1, 0.9) for _ in range(2))
        options.append([(1.0, piece.seconds), *((share, piece.seconds / share**0.6) for share in shares)])
    return Cut(pieces, before), options


def check_possible(cut: Cut, plan: Plan) -> None:
    """Assert that pieces wait for those before them, have their resource alone, and share at most the whole GPU."""
    for index, (begin, _, _) in enumerate(plan.slots):
        assert all(plan.slots[other][1] <= begin + 1e-9 for other in cut.before[index])
        running = [at for at, (low, high, _) in enumerate(plan.slots) if low <= begin + 1e-9 and begin < high - 1e-9]
        assert len({cut.pieces[at].resource for at in running}) == len(running)
        assert sum(plan.slots[at][2] for at in running) <= 1 + 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_the_programme_and_the_enumeration_find_the_same_makespan(seed: int) -> None:
    cut, options = random_cut(random.Random(seed))

    found = solve(cut, cut.before, options)

    assert found.makespan == pytest.approx(enumerate_best(cut, cut.before, options).makespan)
    check_possible(cut, found)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_both_stages_together_find_the_same_either_way(seed: int) -> None:
    draw = random.Random(seed)
    asked = operations(draw.uniform(0.008, 0.016), draw.uniform(0.001, 0.003), draw.choice([4, 6]))
    tables = {"memory": table_of([Pair(64, draw.uniform(0.3, 0.6), 0.7), Pair(32, 0.75, draw.uniform(0.2, 0.5))])}

    found = [search(asked, tables, most=2, solver=solver) for solver in (solve, enumerate_best)]  # type: ignore[arg-type]

    assert found[0].plan.makespan == pytest.approx(found[1].plan.makespan)


@pytest.mark.long
def test_what_is_found_beats_turns_and_is_possible() -> None:
    asked = operations()

    found = search(asked, {"memory": TABLE})

    turns = 0.024
    assert turns / 1.25 < found.plan.makespan < turns / 1.1
    check_possible(found.cut, found.plan)


@pytest.mark.long
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

    for solver in (solve, enumerate_best):
        assert solver(cut, cut.before, [[(0.6, 1.0)]] * 2).makespan == pytest.approx(2)
        assert solver(cut, cut.before, [[(0.5, 1.0)]] * 2).makespan == pytest.approx(1)


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


def test_without_scipy_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(programme.importlib, "import_module", fail)

    with pytest.raises(MissingDependencyError, match=r"photonlite\[tune\]"):
        search(operations(), {"memory": TABLE})

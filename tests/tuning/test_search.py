import random

import pytest

from photonlite.errors import MissingDependencyError, TuningError
from photonlite.tuning import programme
from photonlite.tuning.interference import Pair, Point, Table, table_of
from photonlite.tuning.problem import Cut, Operation, Piece, cuts_of
from photonlite.tuning.programme import Plan, order_of, solve
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
    resources = [draw.choice(["compute", "memory", "memory", "network"]) for _ in range(draw.randint(2, 4))]
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


def test_pieces_wait_for_parents_whose_ranges_meet() -> None:
    asked = [
        Operation("qkv", "compute", 8, {4: 1.0, 8: 2.0}),
        Operation("attention", "memory", 8, {4: 1.0, 8: 2.0}, after=("qkv",)),
    ]

    cut = next(one for one in cuts_of(asked, 2) if len(one.pieces) == 4)

    assert [str(piece) for piece in cut.pieces] == ["qkv 0:4", "qkv 4:8", "attention 0:4", "attention 4:8"]
    assert cut.before == (frozenset(), frozenset(), frozenset({0}), frozenset({1}))
    # Attention of one half runs beside products of the other: three of four halves in a row, if sharing costs nothing.
    free = [[(0.5, 1.0)]] * 4
    assert solve(cut, cut.before, free).makespan == enumerate_best(cut, cut.before, free).makespan == pytest.approx(3)


def test_serial_pieces_follow_one_another() -> None:
    cut = next(one for one in cuts_of(operations()[1:], 3) if len(one.pieces) == 3)

    assert cut.before == (frozenset(), frozenset({0}), frozenset({0, 1}))


def test_a_sum_of_three_shares_is_limited_where_all_three_meet() -> None:
    kinds = ("compute", "memory", "network")
    cut = Cut(tuple(Piece(kind, kind, 0, 1, 1.0) for kind in kinds), (frozenset(),) * 3)  # type: ignore[arg-type]

    for solver in (solve, enumerate_best):
        assert solver(cut, cut.before, [[(0.4, 1.0)]] * 3).makespan == pytest.approx(2), "pairs fit, three do not"
        assert solver(cut, cut.before, [[(0.33, 1.0)]] * 3).makespan == pytest.approx(1)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ([Operation("a", "compute", 1, {1: 1.0}), Operation("a", "memory", 1, {1: 1.0})], "one name"),
        ([Operation("a", "compute", 1, {1: 1.0}, after=("b",))], "'b', which is no operation"),
        (
            [Operation("a", "compute", 1, {1: 1.0}, ("b",)), Operation("b", "memory", 1, {1: 1.0}, ("a",))],
            "in a cycle: a, b",
        ),
        ([Operation("a", "compute", 5, {2: 1.0})], r"\[2\], fill its batch of 5"),
        ([], "at least one"),
    ],
)
def test_operations_that_contradict_each_other_are_refused(asked: list[Operation], complaint: str) -> None:
    with pytest.raises(TuningError, match=complaint):
        search(asked, {"memory": TABLE})


def test_pieces_that_wait_in_a_cycle_are_refused() -> None:
    cut = Cut((Piece("a", "compute", 0, 1, 1.0), Piece("b", "memory", 0, 1, 1.0)), (frozenset(),) * 2)

    with pytest.raises(TuningError, match="in a cycle: a 0:1, b 0:1"):
        order_of(cut, [frozenset({1}), frozenset({0})])


def test_without_scipy_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(programme.importlib, "import_module", fail)

    with pytest.raises(MissingDependencyError, match=r"photonlite\[tune\]"):
        search(operations(), {"memory": TABLE})

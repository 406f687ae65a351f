import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from photonlite.grammar.automata.tables import words
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.kernels.columns import (
    BIN0,
    BIN1,
    COORDINATE,
    END,
    FINITE,
    FORCED,
    ID,
    MASS0,
    MASS1,
    PARAM_COLUMNS,
    PROBABILITY,
    RESULT_COLUMNS,
    SIZE,
    TEMPERATURE,
    TIES,
    TOP_P,
    U0,
    U1,
    U2,
)
from photonlite.request import MAX_SCORED, Allowed
from photonlite.runner.sampling_params import Variant, read_results, uniform, write_scored
from tests.runner.needs import SamplingParams, variant_of, write_choice

DECIDES = Allowed((5, 0), coordinate=5, end=0)
X = Allowed((5,), coordinate=5)
WH = Allowed((6,), size=6)
WORD = Allowed((7,))
ANY = Allowed()
REASONING = Allowed(coordinate=5)


def bits(*ids: int) -> npt.NDArray[np.int32]:
    return np.array([sum(1 << one for one in ids) & 0xFFFFFFFF, sum(1 << one for one in ids) >> 32], np.uint32).view(
        np.int32
    )


def written(
    choice: SamplingParams | None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """A row as integers and as floats, and its mask; written into the middle of an array, over rubbish."""
    rows = np.full((3, PARAM_COLUMNS), 77, np.int32)
    masks = np.full((3, words(40)), 77, np.int32)
    write_choice(choice, rows[1], masks[1], MaskCache(40))
    assert (rows[0] == 77).all()
    assert (rows[2] == 77).all()
    return rows[1], rows[1].view(np.float32), masks[1]


def test_numbers_are_uniform_and_never_one() -> None:
    count = 1 << 16
    for draws in (
        [uniform(0, index, 0) for index in range(count)],
        [uniform(seed, 0, 1) for seed in range(count)],
        [uniform(2**63 - 1, index, 2) for index in range(count)],
    ):
        assert 0 <= min(draws) < 1e-3
        assert 1 - 1e-3 < max(draws) <= float(np.float32(max(draws))) < 1
        assert abs(np.mean(draws) - 0.5) < 6 / math.sqrt(12 * count)
        observed = np.histogram(draws, 64, (0, 1))[0]
        chi_square = float(((observed - count / 64) ** 2 / (count / 64)).sum())
        assert 20 < chi_square < 130  # 63 degrees of freedom, 11 standard deviation


def test_numbers_of_neighbours_do_not_hang_together() -> None:
    count = 1 << 14
    base = [uniform(9, index, 0) for index in range(count)]
    for other in (
        [uniform(9, index, 1) for index in range(count)],
        [uniform(9, index, 2) for index in range(count)],
        [uniform(9, index + 1, 0) for index in range(count)],
        [uniform(10, index, 0) for index in range(count)],
    ):
        assert abs(np.corrcoef(base, other)[0, 1]) < 6 / math.sqrt(count)


def test_numbers_repeat() -> None:
    assert uniform(3, 4, 1) == uniform(3, 4, 1)
    assert len({uniform(3, index, lane) for index in range(100) for lane in range(3)}) == 300


def test_a_choice_is_written_whole() -> None:
    row, floats, mask = written(SamplingParams(DECIDES, 0.5, 0.25, seed=8, index=3))

    assert row[[FORCED, COORDINATE, SIZE, END]].tolist() == [-1, 5, -1, 0]
    assert floats[[TEMPERATURE, TOP_P]].tolist() == [0.5, 0.25]
    assert floats[[U0, U1, U2]].tolist() == [uniform(8, 3, lane) for lane in range(3)]
    assert mask.tolist() == [0b100001, 0]


def test_a_forced_id_needs_no_mask() -> None:
    row, _, mask = written(SamplingParams(WH, 0.0, 1.0, seed=8, index=3))

    assert row[[FORCED, COORDINATE, SIZE, END]].tolist() == [6, -1, 6, -1]
    assert mask.tolist() == [77, 77]


def test_a_forced_id_that_is_scored_has_a_mask_all_the_same() -> None:
    row, _, mask = written(SamplingParams(Allowed((7,), scored=(7,)), 0.0, 1.0, seed=8, index=3))

    assert row[FORCED] == 7
    assert mask.tolist() == [1 << 7, 0]


def test_a_mask_of_the_grammars_own_is_written_as_it_is() -> None:
    assert (
        written(SamplingParams(Allowed(mask=bits(3, 31, 33)), 0.0, 1.0, 0, 0))[2].tolist() == bits(3, 31, 33).tolist()
    )


def test_scored_ids_are_written_and_the_rest_of_the_row_asks_for_nothing() -> None:
    row = np.full(MAX_SCORED, 77, np.int32)
    write_scored((9, 0, 39), row, 40)

    assert row[:3].tolist() == [9, 0, 39]
    assert (row[3:] == -1).all()


@pytest.mark.parametrize(
    ("scored", "complaint"),
    [((1, -1), "vocabulary of 40"), ((40,), "vocabulary of 40"), ((1,) * (MAX_SCORED + 1), "over the limit")],
)
def test_what_cannot_be_scored_never_reaches_the_device(scored: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        write_scored(scored, np.zeros(MAX_SCORED, np.int32), 40)


def test_nobody_gets_id_0_without_a_look_at_any_head() -> None:
    row, floats, mask = written(None)

    assert row[[FORCED, COORDINATE, SIZE, END]].tolist() == [0, -1, -1, -1]
    assert floats[TEMPERATURE] == 0
    assert mask.tolist() == [77, 77]


@pytest.mark.parametrize(("temperature", "stored"), [(1e-60, 0.0), (1e300, float(np.finfo(np.float32).max))])
def test_temperatures_beyond_float32_go_to_its_ends(temperature: float, stored: float) -> None:
    assert written(SamplingParams(ANY, temperature, 1.0, 0, 0))[1][TEMPERATURE] == stored


@pytest.mark.parametrize("number", [-1, 40, 2**40])
@pytest.mark.parametrize(
    "names",
    [
        lambda number: Allowed((number,)),
        lambda number: Allowed((1, number)),
        lambda number: Allowed((1, 2), coordinate=number),
        lambda number: Allowed((1, 2), size=number),
        lambda number: Allowed((1, 2), end=number),
    ],
    ids=["forced", "listed", "coordinate", "size", "end"],
)
def test_an_id_that_is_not_in_the_vocabulary_never_reaches_the_device(
    names: Callable[[int], Allowed], number: int
) -> None:
    with pytest.raises(ValueError, match="vocabulary of 40"):
        written(SamplingParams(names(number), 0.0, 1.0, 0, 0))


@pytest.mark.parametrize(
    ("allowed", "winners"),
    [
        (Allowed((5, 9), coordinate=5, end=9), range(40)),
        (Allowed((9, 5), coordinate=5, end=9), []),
        (Allowed(None, coordinate=5, end=9), range(9)),
    ],
)
def test_the_first_in_the_list_wins_a_tie_with_the_end(allowed: Allowed, winners: Sequence[int]) -> None:
    ties = written(SamplingParams(allowed, 0.0, 1.0, 0, 0))[0][TIES]

    assert [id_ for id_ in range(40) if id_ < ties] == list(winners)


@pytest.mark.parametrize(
    ("rows", "variant"),
    [
        ([], "text"),
        ([None, WORD], "text"),
        ([None, WORD, ANY], "text"),
        ([X, None, WORD], "coordinate"),
        ([WH, WH, WORD], "size"),
        ([X, WH], "mixed"),
        ([X, ANY], "decide"),
        ([X, WH, WORD], "mixed"),
        ([DECIDES], "decide"),
        ([REASONING, None, X, ANY], "decide"),
        ([DECIDES, WH], "mixed"),
        ([Allowed(suppressed=(5,), coordinate=5)], "text"),
        ([Allowed((1, 2), coordinate=5, size=6)], "text"),
        ([Allowed((1, 6), coordinate=5, size=6)], "mixed"),
        ([Allowed(None, end=0)], "decide"),
        ([Allowed(mask=bits(1, 9), coordinate=5, size=6)], "text"),
        ([Allowed(mask=bits(5, 9), coordinate=5)], "decide"),
        ([Allowed(mask=bits(6, 39), size=6)], "mixed"),
        ([ANY, Allowed((7, 8), scored=(7, 8))], "scored"),
        ([X, Allowed((7,), scored=(7,)), None], "scored"),
    ],
)
def test_only_the_heads_that_rows_need_are_computed(rows: list[Allowed | None], variant: Variant) -> None:
    choices = [allowed and SamplingParams(allowed, 0.0, 1.0, 0, 0) for allowed in rows]

    assert variant_of(choices) == (variant, False)


def test_a_batch_is_penalized_where_one_row_is() -> None:
    penalized, scored = SamplingParams(ANY, 0.0, 1.0, 0, 0, penalty=1.3), Allowed((7, 8), scored=(7, 8))

    assert variant_of([None, SamplingParams(X, 0.0, 1.0, 0, 0), penalized]) == ("penalized", False)
    assert variant_of([penalized, SamplingParams(scored, 0.7, 1.0, 0, 0)]) == ("penalized", True)


def test_a_batch_draws_where_one_row_does() -> None:
    hot, cold = (lambda allowed: SamplingParams(allowed, 0.7, 1.0, 0, 0)), SamplingParams(ANY, 0.0, 1.0, 0, 0)

    assert variant_of([cold, None, hot(X)]) == ("decide", True)
    assert variant_of([cold, hot(ANY)]) == ("text", True)
    assert variant_of([cold, hot(WORD)]) == ("text", False)


def test_results_are_read_back() -> None:
    rows = np.zeros((4, RESULT_COLUMNS), np.int32)
    rows[1, [ID, BIN0, BIN1, FINITE]] = 6, 100, -1, 1
    rows[1].view(np.float32)[[PROBABILITY, MASS0, MASS1]] = 0.5, 0.25, 0.125

    first, second = read_results(rows, 2)

    assert tuple(first) == (0, 0, 0, 0, 0.0, 0.0, 0.0)
    assert second._asdict() == {
        "id": 6,
        "bin0": 100,
        "bin1": -1,
        "finite": 1,
        "probability": 0.5,
        "mass0": 0.25,
        "mass1": 0.125,
    }

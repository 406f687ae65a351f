import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from photonlite.grammar.automata import partition
from photonlite.grammar.automata.partition import columns_of, refine, stable

TARGETS = arrays.arrays(np.int32, (6, 2), elements=st.integers(-1, 5))
GAINS = arrays.arrays(np.int32, (6, 2), elements=st.integers(0, 2))


def behaviour(targets: np.ndarray, gains: np.ndarray, state: int, depth: int) -> object:
    """What can be seen from a state in so many steps."""
    if state < 0:
        return None
    steps = range(targets.shape[1]) if depth else ()
    return tuple(
        (int(gains[state, c]), behaviour(targets, gains, targets[state, c], depth - 1))
        if targets[state, c] >= 0
        else None
        for c in steps
    )


@settings(deadline=None)
@given(TARGETS, GAINS, st.integers(0, 5))
def test_rounds_tell_apart_what_can_be_seen_in_as_many_steps(
    targets: np.ndarray, gains: np.ndarray, rounds: int
) -> None:
    classes = np.zeros(6, np.int64)
    for _ in range(rounds):
        classes = refine(classes, targets, gains)

    seen = [behaviour(targets, gains, state, rounds) for state in range(6)]
    for one, other in itertools.combinations(range(6), 2):
        assert (classes[one] == classes[other]) == (seen[one] == seen[other])


def test_accidents_of_the_hash_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = partition._multipliers
    zeros = np.zeros(257, np.uint64)
    monkeypatch.setattr(partition, "_multipliers", lambda seed: zeros if seed < 3 else honest(seed))

    assert refine(np.arange(4), np.full((4, 1), -1, np.int32)).tolist() != [0, 0, 0, 0]


def test_what_is_not_stable_in_time_is_none() -> None:
    chain = np.array([[1], [2], [3], [-1]], np.int32)
    start = np.zeros(4, np.int64)

    assert stable(start, chain, 2) is None
    found = stable(start, chain, 9)
    assert found is not None
    assert len(set(found.tolist())) == 4


@settings(deadline=None)
@given(arrays.arrays(np.int32, (4, 256), elements=st.integers(-1, 1)))
def test_columns_are_those_of_the_table(delta: np.ndarray) -> None:
    columns, column = columns_of(delta)

    assert (columns[:, column] == delta).all()
    assert len(np.unique(columns, axis=1).T) == columns.shape[1]

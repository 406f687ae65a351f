"""States of an automaton that cannot be told apart, by rounds of refinement (Moore, 1956).

Two states stay together in a round if they were together before it, and every letter leads both of them to states that
were. After k rounds, states that are together allow the same words of up to k letters.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = 257
"""One for each letter, one for the class that a state had."""


def columns_of(delta: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Merge letters that lead every state to the same place.

    Args:
        delta: int32 ``[S, 256]``: the next state, -1 for none.

    Returns:
        The different columns, int32 ``[S, C]``, and for each letter which of them is its own, uint8 ``[256]``.
    """
    known: dict[bytes, int] = {}
    column = np.array([known.setdefault(each.tobytes(), len(known)) for each in np.ascontiguousarray(delta.T)])
    _, first = np.unique(column, return_index=True)
    return np.ascontiguousarray(delta[:, first]), column.astype(np.uint8)


def refine(
    classes: npt.NDArray[np.int64], targets: npt.NDArray[np.int32], gains: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.int64]:
    """Do one round.

    Args:
        classes: int64 ``[S]``: the class of each state, from 0.
        targets: int32 ``[S, C]``: the next state, -1 for none.
        gains: int32 ``[S, C]``, at least 0: something of each step that must be equal as well.

    Returns:
        int64 ``[S]``: the new classes, numbered from 0.
    """
    values = np.append(classes + 1, 0)[targets]  # [S, C]; index -1 is the 0 at the end
    if gains is not None:
        values = np.where(values > 0, values * (int(gains.max(initial=0)) + 1) + gains, 0)
    signs = np.concatenate((classes[:, None], values), axis=1)  # [S, 1 + C]
    for seed in range(64):
        # States are grouped by a hash, and compared with the first of their group: an accident is seen, and tried anew.
        hashed = signs.astype(np.uint64) @ _multipliers(seed)[: signs.shape[1]]
        _, first, groups = np.unique(hashed, return_index=True, return_inverse=True)
        groups = groups.reshape(-1).astype(np.int64)
        if np.array_equal(signs[first][groups], signs):
            return groups
    raise AssertionError("no hash told the states apart")  # 64 accidents of one in 2**40


def stable(classes: npt.NDArray[np.int64], targets: npt.NDArray[np.int32], rounds: int) -> npt.NDArray[np.int64] | None:
    """Refine until nothing changes.

    Args:
        classes: int64 ``[S]``: where to begin.
        targets: int32 ``[S, C]``: the next state, -1 for none.
        rounds: Rounds at most.

    Returns:
        int64 ``[S]``: the classes, or None where the rounds did not suffice.
    """
    for _ in range(rounds):
        finer = refine(classes, targets)
        if finer.max(initial=0) == classes.max(initial=0):
            return finer
        classes = finer
    return None


def _multipliers(seed: int) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(1, 2**63, _MULTIPLIERS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

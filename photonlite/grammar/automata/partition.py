"""Equivalent states of an automaton, by rounds of refinement (Moore, 1956).

Two states stay in one class if they were in one class before the round and every letter leads them to states of one
class. After k rounds, states of one class allow the same words of up to k letters.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from photonlite.grammar.automata.arrays import Int32Array, Int64Array, UInt8Array

_MULTIPLIERS = 257  # one for each letter, one for the class that a state had


def columns_of(delta: Int32Array) -> tuple[Int32Array, UInt8Array]:
    """Merge letters that lead every state to the same target; returns [S, C], and the column of each letter: [256]."""
    known: dict[bytes, int] = {}
    column = np.array([known.setdefault(each.tobytes(), len(known)) for each in np.ascontiguousarray(delta.T)])
    _, first = np.unique(column, return_index=True)
    return np.ascontiguousarray(delta[:, first]), column.astype(np.uint8)


def refine(classes: Int64Array, targets: Int32Array, gains: Int32Array | None = None) -> Int64Array:
    """Return the classes after one round, numbered from 0: [S].

    `classes` is [S], `targets` [S, C] with -1 for none; `gains`, [S, C] of at least 0, must be equal in a class too.
    """
    values = np.append(classes + 1, 0)[targets]  # [S, C]; index -1 is the 0 at the end
    if gains is not None:
        values = np.where(values > 0, values * (int(gains.max(initial=0)) + 1) + gains, 0)
    signs = np.concatenate((classes[:, None], values), axis=1)  # [S, 1 + C]
    for seed in range(64):
        # Group states by a hash, and compare each with the first of its group: after a collision, try another hash.
        hashed = signs.astype(np.uint64) @ _multipliers(seed)[: signs.shape[1]]
        _, first, groups = np.unique(hashed, return_index=True, return_inverse=True)
        groups = groups.reshape(-1).astype(np.int64)
        if np.array_equal(signs[first][groups], signs):
            return groups
    raise AssertionError("no hash told the states apart")  # 64 collisions of one in 2**40


def stable(classes: Int64Array, targets: Int32Array, rounds: int) -> Int64Array | None:
    """Refine until nothing changes; None where that takes more rounds."""
    for _ in range(rounds):
        finer = refine(classes, targets)
        if finer.max(initial=0) == classes.max(initial=0):
            return finer
        classes = finer
    return None


def _multipliers(seed: int) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(1, 2**63, _MULTIPLIERS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

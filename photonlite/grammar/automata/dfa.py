r"""Compiles a pattern to a table: which byte leads from which state to which.

The package outlines-core compiles the pattern over a vocabulary of the 256 single bytes, which takes milliseconds where
51,200 tokens take minutes; `builder` works out the tokens from the table. Two letters around the pattern pin its ends:
without them outlines-core misses words such as "7.5" of `[0-9]+(\.[0-9]+)?`, and does not say where a word may end.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import outlines_core

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.alphabet import START, STOP, BoolArray, Int32Array, Int64Array, UInt8Array
from photonlite.grammar.regex.rewrite import rewritten

MAX_PATTERN = 1_000_000  # characters of a compiled pattern; patterns of users have a lower limit
MAX_STATES = 30_000  # of a table: 256 integers each while it is built
_ROUNDS = 64  # of refinement; a table that takes more is used without being minimised


@dataclass(frozen=True, eq=False)
class Dfa:
    """A deterministic automaton whose every state can be reached, and can reach an accepting one."""

    delta: Int32Array  # [S, 256]: next state, -1 for none
    accepts: BoolArray  # [S]: whether a word may end there
    start: int

    @property
    def complete(self) -> BoolArray:
        """Whether nothing may follow in a state: [S]."""
        over: BoolArray = self.accepts & (self.delta < 0).all(axis=1)
        return over


def compile_dfa(pattern: str, *, native: bool) -> Dfa:
    """Compile a pattern that matches whole words: `native` if `json_schema.reader` wrote it, else a user's."""
    if not native:
        pattern = rewritten(pattern)
    if len(pattern) > MAX_PATTERN:
        raise GrammarTooLargeError(
            f"the pattern takes {len(pattern)} characters, over the limit of {MAX_PATTERN}: ask for less in one answer"
        )
    every_byte = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    try:
        index = outlines_core.Index(f"{chr(START)}(?:{pattern}){chr(STOP)}", every_byte)
    except ValueError as cause:  # also what cannot be encoded
        raise _refusal(pattern, cause) from cause
    return _minimised(_trimmed(_table(index)))


def _refusal(pattern: str, cause: ValueError) -> GrammarError:
    if "no transitions" in str(cause):
        return GrammarError("the pattern matches no text at all: loosen it")
    shown = pattern if len(pattern) <= 200 else pattern[:200] + "..."
    return GrammarError(f"the pattern cannot be compiled ({cause}): correct it: {shown!r}")


def _table(index: outlines_core.Index) -> Dfa:
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    if len(transitions) > MAX_STATES:
        raise GrammarTooLargeError(
            f"the pattern has {len(transitions)} states, over the limit of {MAX_STATES}: about "
            f"{100 * MAX_STATES // len(transitions)} % of it fit, so repeat or list less, or give texts as choices"
        )
    number = {state: row for row, state in enumerate(transitions)}
    final = set(index.get_final_states())
    delta = np.full((len(number), 256), -1, np.int32)
    accepts = np.zeros(len(number), np.bool_)
    for state, row in number.items():
        step = {byte: target for byte, target in transitions[state].items() if byte < 256}
        accepts[row] = step.get(STOP) in final
        delta[row, list(step)] = [number[target] for target in step.values()]
    start = int(delta[number[index.get_initial_state()], START])
    delta[:, [START, STOP]] = -1
    return Dfa(delta, accepts, start)


def _trimmed(dfa: Dfa) -> Dfa:
    """Drop states that no word passes through."""
    size = len(dfa.delta)
    edges = edges_of(dfa.delta)
    forward = distances(edges, [(dfa.start, 0)], size)
    back = distances(edges[::-1], [(int(state), 0) for state in np.flatnonzero(dfa.accepts)], size)
    kept = (forward >= 0) & (back >= 0)
    if not kept[dfa.start]:
        raise GrammarError("the pattern matches no text at all: loosen it")
    return restricted(dfa, kept)


def restricted(dfa: Dfa, kept: BoolArray) -> Dfa:
    """Drop states but the kept ones, [S], of which the start must be one."""
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1).astype(np.int32)
    return Dfa(number[dfa.delta[kept]], dfa.accepts[kept], int(number[dfa.start]))


def _minimised(dfa: Dfa) -> Dfa:
    """Merge states that accept the same words, unless that takes too many rounds."""
    targets, _ = columns_of(dfa.delta)
    classes = dfa.accepts.astype(np.int64)
    for _ in range(_ROUNDS):
        coarser, classes = classes, refine(classes, targets)
        if classes.max(initial=0) == coarser.max(initial=0):
            break
    else:
        return dfa
    _, first = np.unique(classes, return_index=True)
    number = np.append(classes, -1).astype(np.int32)
    return Dfa(number[dfa.delta[first]], dfa.accepts[first], int(number[dfa.start]))


def columns_of(delta: Int32Array) -> tuple[Int32Array, UInt8Array]:
    """Merge letters that lead every state to the same target; returns [S, C], and the column of each letter: [256]."""
    known: dict[bytes, int] = {}
    column = np.array([known.setdefault(each.tobytes(), len(known)) for each in np.ascontiguousarray(delta.T)])
    _, first = np.unique(column, return_index=True)
    return np.ascontiguousarray(delta[:, first]), column.astype(np.uint8)


def refine(classes: Int64Array, targets: Int32Array, gains: Int32Array | None = None) -> Int64Array:
    """Return the classes of states, [S], after one round of refinement (Moore, 1956).

    After k rounds, states of one class allow the same words of up to k letters. `targets` is [S, C] with -1 for none;
    `gains`, [S, C] of at least 0, must be equal in a class too.
    """
    values = np.append(classes + 1, 0)[targets]  # [S, C]; index -1 is the 0 at the end
    if gains is not None:
        values = np.where(values > 0, values * (int(gains.max(initial=0)) + 1) + gains, 0)
    signs = np.concatenate((classes[:, None], values), axis=1)  # [S, 1 + C]
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(sign.tobytes(), len(known)) for sign in signs], np.int64)


def edges_of(delta: Int32Array) -> Int64Array:
    """Return the pairs of states that a letter joins: [2, E], from and to."""
    source, letter = np.nonzero(delta >= 0)
    size = len(delta)
    pairs = np.unique(source * size + delta[source, letter])
    return np.stack((pairs // size, pairs % size))


def distances(edges: Int64Array, seeds: Iterable[tuple[int, int]], size: int) -> Int32Array:
    """Count the steps of the shortest way from seeds (states and costs, sorted by cost) to each state: -1 for none."""
    order = np.argsort(edges[0], kind="stable")
    onward = edges[1][order].tolist()
    begin = np.searchsorted(edges[0][order], np.arange(size + 1)).tolist()
    steps = [-1] * size
    later = deque(seeds)
    queue = deque[tuple[int, int]]()
    while queue or later:
        # Both queues are sorted: take the nearest state of either.
        from_seeds = bool(later) and (not queue or later[0][1] <= queue[0][1])
        state, cost = later.popleft() if from_seeds else queue.popleft()
        if steps[state] < 0:
            steps[state] = cost
            queue.extend((target, cost + 1) for target in onward[begin[state] : begin[state + 1]] if steps[target] < 0)
    return np.array(steps, np.int32)

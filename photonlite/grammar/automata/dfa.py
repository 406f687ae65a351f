r"""A pattern as a table: which byte leads from which state to which.

The package outlines-core compiles the pattern, over a vocabulary of the 256 single bytes. That takes milliseconds where
a vocabulary of 51,200 tokens takes minutes, and what the tokens of a model may be is worked out from the table
(`automaton`). Two letters around the pattern pin its ends: without them the compiled table misses words such as "7.5"
of `[0-9]+(\.[0-9]+)?`, and does not say where a word is complete.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import outlines_core

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.alphabet import START, STOP
from photonlite.grammar.automata.partition import columns_of, stable
from photonlite.grammar.regex.rewrite import rewritten

MAX_PATTERN = 1_000_000
"""Characters of a compiled pattern, at most; what a user writes has a limit of its own."""

MAX_STATES = 30_000
"""States of a table, at most: 256 integers each while it is made."""

_ROUNDS = 64
"""A table that these rounds of refinement do not make smallest is left as it is: it is right all the same."""


@dataclass(frozen=True, eq=False)
class Dfa:
    """A deterministic automaton whose every state can be reached, and can reach an accepting one.

    Attributes:
        delta: int32 ``[S, 256]``: the state that a byte leads to, -1 for none.
        accepts: bool ``[S]``: whether a word may end there.
        start: The state at the beginning.
    """

    delta: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]
    start: int


def compile_dfa(pattern: str, *, native: bool) -> Dfa:
    """Compile a pattern; a word is accepted as a whole.

    Args:
        pattern: A regular expression.
        native: Whether it comes from `json_schema.pattern_of`, in the dialect of outlines-core and with letters that
            stand for numbers; or from a user, in the dialect of `regex`: then no letter of `letters.RESERVED` is part
            of its language.

    Raises:
        GrammarError: It is malformed, uses something that is not supported, or matches nothing.
        GrammarTooLargeError: It is too long, or has too many states.
    """
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
            f"the pattern has {len(transitions)} states, over the limit of {MAX_STATES}: repeat or count less"
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
    """Leave out states that no word passes through."""
    size = len(dfa.delta)
    edges = edges_of(dfa.delta)
    forward = distances(edges, [(dfa.start, 0)], size)
    back = distances(edges[::-1], [(int(state), 0) for state in np.flatnonzero(dfa.accepts)], size)
    kept = (forward >= 0) & (back >= 0)
    if not kept[dfa.start]:
        raise GrammarError("the pattern matches no text at all: loosen it")
    return restricted(dfa, kept)


def restricted(dfa: Dfa, kept: npt.NDArray[np.bool_]) -> Dfa:
    """Leave out states, among which the start is not; kept is bool ``[S]``."""
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1).astype(np.int32)
    return Dfa(number[dfa.delta[kept]], dfa.accepts[kept], int(number[dfa.start]))


def _minimised(dfa: Dfa) -> Dfa:
    """Merge states that accept the same words, where that is quick to find out."""
    targets, _ = columns_of(dfa.delta)
    classes = stable(dfa.accepts.astype(np.int64), targets, _ROUNDS)
    if classes is None:
        return dfa
    _, first = np.unique(classes, return_index=True)
    number = np.append(classes, -1).astype(np.int32)
    return Dfa(number[dfa.delta[first]], dfa.accepts[first], int(number[dfa.start]))


def edges_of(delta: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Give the pairs of states that a letter joins: int64 ``[2, E]``, from and to."""
    source, letter = np.nonzero(delta >= 0)
    size = len(delta)
    pairs = np.unique(source * size + delta[source, letter])
    return np.stack((pairs // size, pairs % size))


def distances(edges: npt.NDArray[np.int64], seeds: Iterable[tuple[int, int]], size: int) -> npt.NDArray[np.int32]:
    """Count the steps of the shortest way from any of the seeds to each state.

    Args:
        edges: int64 ``[2, E]``: from and to.
        seeds: States and what they begin with, sorted by that: 0 or 1.
        size: States that there are.

    Returns:
        int32 ``[size]``, -1 where no way leads.
    """
    order = np.argsort(edges[0], kind="stable")
    onward = edges[1][order].tolist()
    begin = np.searchsorted(edges[0][order], np.arange(size + 1)).tolist()
    steps = [-1] * size
    later = deque(seeds)
    queue = deque[tuple[int, int]]()
    while queue or later:
        # Both queues are sorted, so that the nearest state comes first.
        from_seeds = bool(later) and (not queue or later[0][1] <= queue[0][1])
        state, cost = later.popleft() if from_seeds else queue.popleft()
        if steps[state] < 0:
            steps[state] = cost
            queue.extend((target, cost + 1) for target in onward[begin[state] : begin[state + 1]] if steps[target] < 0)
    return np.array(steps, np.int32)

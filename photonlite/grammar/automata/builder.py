"""From a table of letters to a grammar over the tokens of one vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.alphabet import COORDINATE, NATIVE, SIZE
from photonlite.grammar.automata.dfa import Dfa, distances, edges_of, restricted
from photonlite.grammar.automata.partition import columns_of, refine
from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.automata.token_sets import TokenSets, TokenSetWriter
from photonlite.grammar.automata.trie import Tier, TokenTrie
from photonlite.grammar.automata.walk import Effects, Steps, effects, gathered, joined

__all__ = ["Automaton", "SpecialIds", "build_automaton"]

MAX_STEPS = 40_000_000
"""Pairs of a class of states and a token that may stand there: five bytes each while a grammar is built."""


@dataclass(frozen=True, eq=False)
class _Reached:
    """What some tokens do.

    Attributes:
        effects: In each class of states.
        classes: int64 ``[S]``: the class of each state.
    """

    effects: Effects
    classes: npt.NDArray[np.int64]


def build_automaton(dfa: Dfa, trie: TokenTrie, ids: SpecialIds) -> Automaton:
    """Work out which tokens may stand in which state.

    Args:
        dfa: Over letters.
        trie: Of all tokens.
        ids: Those that are no text; they never stand for their bytes.

    Raises:
        GrammarError: The vocabulary cannot spell what is asked for.
        GrammarTooLargeError: The sets of tokens are over a limit.
    """
    dfa, distance = _spelled(dfa, _usable(dfa, trie, ids))
    targets, column = columns_of(dfa.delta)
    steps = Steps(targets, column, distance)
    reached = [_numbers(steps, ids, dfa.accepts), *_texts(trie.tiers, steps, ids)]
    longer = np.maximum.reduce([one.effects.longer[one.classes] for one in reached])
    rows, row_of = _rows(reached, ids)
    return Automaton(
        ids, trie.pieces, dfa.start, targets, column, dfa.accepts, complete(dfa), distance, longer, rows, row_of
    )


def complete(dfa: Dfa) -> npt.NDArray[np.bool_]:
    """Tell in which states an answer is over because nothing may follow: bool ``[S]``."""
    over: npt.NDArray[np.bool_] = dfa.accepts & (dfa.delta < 0).all(axis=1)
    return over


def _special(ids: SpecialIds) -> list[int]:
    return [index for index in (ids.end, ids.coordinate, ids.size) if index is not None]


def _usable(dfa: Dfa, trie: TokenTrie, ids: SpecialIds) -> npt.NDArray[np.bool_]:
    """Tell which letters have a token of their own: bool ``[256]``."""
    usable = trie.singles(_special(ids)) >= 0
    for letter, index, name in ((COORDINATE, ids.coordinate, "coordinates"), (SIZE, ids.size, "sizes")):
        usable[letter] = index is not None
        if index is None and (dfa.delta[:, letter] >= 0).any():
            raise GrammarError(f"the answer holds boxes or points, but this checkpoint has no {name}: leave them out")
    return usable


def _spelled(dfa: Dfa, usable: npt.NDArray[np.bool_]) -> tuple[Dfa, npt.NDArray[np.int32]]:
    """Leave out states from which single letters lead to no end, and tell how far the end is from the others."""
    # Where nothing may follow an answer is over; where it may but need not follow, the end id says that it is.
    over = complete(dfa)
    ends = [(int(state), 0) for state in np.flatnonzero(over)]
    ends += [(int(state), 1) for state in np.flatnonzero(dfa.accepts & ~over)]
    distance = distances(edges_of(np.where(usable, dfa.delta, -1))[::-1], ends, len(dfa.delta))
    kept = distance >= 0
    if not kept[dfa.start]:
        missing = ", ".join(f"0x{byte:02x}" for byte in np.flatnonzero(~usable & (dfa.delta >= 0).any(axis=0))[:8])
        raise GrammarError(f"this vocabulary cannot spell any answer: it has no tokens for the single bytes {missing}")
    if kept.all():
        return dfa, distance
    # A state that loses all that may follow is over now, and its answers end one token earlier than was counted.
    return _spelled(restricted(dfa, kept), usable)


def _texts(tiers: Sequence[Tier], steps: Steps, ids: SpecialIds) -> list[_Reached]:
    # What a step does to the distance is part of what must be equal: tokens are sorted by it.
    gains = np.where(steps.targets >= 0, steps.distance[steps.targets] - steps.distance[:, None], 0)
    gains -= gains.min(initial=0)
    classes, done, settled = np.zeros(len(steps.targets), np.int64), 0, False
    found: list[_Reached] = []
    for tier in tiers:
        while done < len(tier.levels) and not settled:
            finer = refine(classes, steps.targets, gains)
            settled = finer.max() == classes.max()
            classes, done = finer, done + 1
        _, first = np.unique(classes, return_index=True)
        parts: list[Effects] = []
        for part in effects(tier, steps, first, np.isin(tier.ids, _special(ids))):
            parts.append(part)
            if sum(len(each.ids) for each in parts) + sum(len(one.effects.ids) for one in found) > MAX_STEPS:
                raise GrammarTooLargeError(
                    f"the answer has too many places at which almost anything may stand (over {MAX_STEPS} pairs of a "
                    f"place and a token): limit fewer or shorter texts by maxLength or counts"
                )
        found.append(_Reached(joined(parts), classes))
    return found


def _numbers(steps: Steps, ids: SpecialIds, accepts: npt.NDArray[np.bool_]) -> _Reached:
    """Give what the tokens do that are no text."""
    origins, tokens, gains = [np.flatnonzero(accepts)], [ids.end], [-steps.distance[accepts]]
    for letter, index in zip(NATIVE, (ids.coordinate, ids.size), strict=True):
        if index is not None:
            targets = steps.targets[:, steps.column[letter]]
            states = np.flatnonzero(targets >= 0)
            origins.append(states)
            tokens.append(index)
            gains.append(steps.distance[targets[states]] - steps.distance[states])
    named = np.repeat(np.array(tokens, np.int32), [len(states) for states in origins])
    found = gathered(len(steps.targets), np.concatenate(origins), named, np.concatenate(gains))
    return _Reached(found, np.arange(len(steps.targets)))


def _rows(reached: Sequence[_Reached], ids: SpecialIds) -> tuple[TokenSets, npt.NDArray[np.int32]]:
    """Give the different sets of tokens, and those of each state: int32 ``[S, 3]``."""
    # States are alike that are in one class of every tier and take the same numbers.
    writer = TokenSetWriter(ids.vocab_size)
    known: dict[tuple[object, ...], tuple[int, int, int]] = {}
    row_of = []
    numbers, texts = reached[0].effects, reached[1:]
    classes = np.stack([one.classes for one in texts], axis=1).tolist() if texts else [[]] * len(numbers.longer)
    for state, places in enumerate(classes):
        own = slice(numbers.bounds[state], numbers.bounds[state + 1])
        key = (*places, numbers.ids[own].tobytes(), numbers.kinds[own].tobytes())
        if key not in known:
            slices = [(numbers, own)]
            slices += [
                (one.effects, slice(one.effects.bounds[place], one.effects.bounds[place + 1]))
                for one, place in zip(texts, places, strict=True)
            ]
            tokens = np.concatenate([source.ids[part] for source, part in slices])
            known[key] = writer.add(tokens, np.concatenate([source.kinds[part] for source, part in slices]))
        row_of.append(known[key])
    return writer.rows(), writer.numbered(np.array(row_of, np.int32))

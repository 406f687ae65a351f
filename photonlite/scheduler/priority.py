"""Who comes first: real-time requests before bulk ones, the oldest of a class before the others, and nobody for ever.

```
real-time   R R R R R R R R   R R ...
bulk                        B            at its turn, after BULK_TURN launches that overtook it
```
"""

from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from sortedcontainers import SortedKeyList

from photonlite.sequence import Sequence

Ordered: TypeAlias = "SortedKeyList[Sequence, int]"
"""Sequences by their numbers."""

BULK_TURN = 8
"""Launches for real-time requests that bulk ones which wait let pass, before one is theirs."""

BULK_STEP = 32
"""The same of decode steps: they are short, and the answer of a loop's request has about as many tokens."""


def rank(sequence: Sequence) -> tuple[bool, int]:
    """Give a sequence's place among others: the smallest comes first."""
    return not sequence.realtime, sequence.number


class Turns:
    """Counts how often in a row bulk work was overtaken, and says when it must be no more.

    Args:
        patience: How often it may be.

    Attributes:
        overtaken: Launches since the last one that bulk work had a part in, or did not wait for.
    """

    def __init__(self, patience: int = BULK_TURN) -> None:
        self.overtaken = 0
        self._patience = patience

    @property
    def due(self) -> bool:
        """Whether it is the turn of bulk work."""
        return self.overtaken >= self._patience

    def book(self, *, overtakes: bool) -> None:
        """Note a launch: one that overtakes bulk work which waits, or another one."""
        self.overtaken = self.overtaken + 1 if overtakes else 0


class Queue:
    """Sequences in the order of their ranks: all real-time ones, then all bulk ones, the oldest of each first.

    Adding, removing and finding one takes time in the logarithm of how many there are.
    """

    def __init__(self) -> None:
        self._realtime: Ordered = SortedKeyList(key=number_of)
        self._bulk: Ordered = SortedKeyList(key=number_of)

    def __len__(self) -> int:
        return len(self._realtime) + len(self._bulk)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._realtime, self._bulk)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._of(sequence.realtime)

    @property
    def last(self) -> Sequence:
        """The one of the lowest rank: the youngest of the bulk, if there is any."""
        last: Sequence = (self._bulk or self._realtime)[-1]
        return last

    @property
    def realtime(self) -> int:
        """How many are real-time."""
        return len(self._realtime)

    @property
    def bulk(self) -> int:
        """How many are not."""
        return len(self._bulk)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence where it belongs."""
        self._of(sequence.realtime).add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take one out.

        Raises:
            ValueError: It is not there.
        """
        self._of(sequence.realtime).remove(sequence)

    def first(self, count: int, *, realtime: bool) -> list[Sequence]:
        """Give the oldest of a class, so many at most."""
        oldest: list[Sequence] = self._of(realtime)[:count]
        return oldest

    def _of(self, realtime: bool) -> Ordered:
        return self._realtime if realtime else self._bulk


def number_of(sequence: Sequence) -> int:
    """Return a sequence's number, by which lists are sorted."""
    return sequence.number

"""Who comes first: real-time requests before bulk ones, the oldest of a class before the others, and nobody for ever.

```
real-time   R R R R R R R R   R R ...
bulk                        B            at its turn, after BULK_TURN launches that overtook it
```
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from photonlite.sequence import Sequence

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
    """Sequences in the order of their ranks: all real-time ones, then all bulk ones, the oldest of each first."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._sequences

    @property
    def last(self) -> Sequence:
        """The one of the lowest rank: the youngest of the bulk, if there is any."""
        return self._sequences[-1]

    @property
    def realtime(self) -> int:
        """How many are real-time."""
        return bisect_left(self._sequences, True, key=_is_bulk)

    @property
    def bulk(self) -> int:
        """How many are not."""
        return len(self) - self.realtime

    def add(self, sequence: Sequence) -> None:
        """Put a sequence where it belongs."""
        insort(self._sequences, sequence, key=rank)

    def remove(self, sequence: Sequence) -> None:
        """Take one out.

        Raises:
            ValueError: It is not there.
        """
        self._sequences.remove(sequence)

    def first(self, count: int, *, realtime: bool) -> list[Sequence]:
        """Give the oldest of a class, so many at most."""
        start = 0 if realtime else self.realtime
        end = self.realtime if realtime else len(self)
        return self._sequences[start : min(end, start + count)]


def _is_bulk(sequence: Sequence) -> bool:
    return not sequence.realtime

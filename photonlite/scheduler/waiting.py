"""The waiting sequences, by rank and by image, and which of them may be ready to run.

```
line        sequences of one class that wait for one image, oldest first; those without an image form one line too
open line   may be ready: opened whenever that can become true, closed when a look shows that it is not
```

A look at the open lines costs no more than what it finds, however many sequences wait in the others.
"""

import heapq
from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedKeyList

from photonlite.scheduler.priority import Ordered, Queue, number_of
from photonlite.sequence import Sequence


class _Line:
    """Sequences that become ready together.

    Attributes:
        sequences: By their numbers.
        opened_at: Number of the first one while the line is open, under which `Waiting` has it; None while closed.
    """

    __slots__ = ("opened_at", "sequences")

    def __init__(self) -> None:
        self.sequences: Ordered = SortedKeyList(key=number_of)
        self.opened_at: int | None = None

    def after(self, number: int) -> Sequence | None:
        """Return the first sequence whose number is larger."""
        return next(self.sequences.irange_key(min_key=number, inclusive=(False, True)), None)


class Waiting(Queue):
    """Sequences that are not admitted, or pre-empted."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[bool, dict[str | None, _Line]] = {True: {}, False: {}}
        self._open: dict[bool, SortedDict[int, _Line]] = {True: SortedDict(), False: SortedDict()}
        self._asked: dict[bool, SortedKeyList[Sequence, tuple[float, int]]] = {
            True: SortedKeyList(key=_asked_at),
            False: SortedKeyList(key=_asked_at),
        }

    def add(self, sequence: Sequence) -> None:
        """Put a sequence where it belongs; it may be ready."""
        super().add(sequence)
        self._asked[sequence.realtime].add(sequence)
        lines = self._lines[sequence.realtime]
        if (line := lines.get(sequence.image_key)) is None:
            line = lines[sequence.image_key] = _Line()
        line.sequences.add(sequence)
        self._open_line(line, sequence.realtime)

    def remove(self, sequence: Sequence) -> None:
        """Take one out.

        Raises:
            ValueError: It is not there.
        """
        super().remove(sequence)
        self._asked[sequence.realtime].remove(sequence)
        lines = self._lines[sequence.realtime]
        line = lines[sequence.image_key]
        line.sequences.remove(sequence)
        if not line.sequences:
            self._close_line(line, sequence.realtime)
            del lines[sequence.image_key]
        elif line.opened_at is not None:
            self._open_line(line, sequence.realtime)

    def oldest(self, *, realtime: bool) -> Sequence | None:
        """Return the sequence of a class that was asked for first.

        May be called from any thread: iterating over a list never fails while that changes.
        """
        return next(iter(self._asked[realtime]), None)

    def about(self, key: str) -> Sequence | None:
        """Return the first sequence that waits for an image."""
        for lines in (self._lines[True], self._lines[False]):
            if (line := lines.get(key)) is not None:
                first: Sequence = line.sequences[0]
                return first
        return None

    def open(self, key: str) -> None:
        """Note that sequences which wait for an image may be ready: it is encoded, or cached."""
        for realtime, lines in self._lines.items():
            if (line := lines.get(key)) is not None:
                self._open_line(line, realtime)

    def close(self, sequence: Sequence) -> None:
        """Note that a sequence is not ready, and those that wait for the same image are not either."""
        self._close_line(self._lines[sequence.realtime][sequence.image_key], sequence.realtime)

    def candidates(self, *, realtime: bool) -> Iterator[Sequence]:
        """Walk the sequences of a class that may be ready, oldest first.

        Whoever walks may take out the sequence that it has just got, or close its line.
        """
        opened, behind = self._open[realtime], list[tuple[int, _Line]]()
        last = -1
        while True:
            # First of all in lines whose first one has not been reached, then behind those that were passed by.
            head = next(opened.irange(minimum=last, inclusive=(False, True)), None)
            while behind and (behind[0][0] <= last or behind[0][1].opened_at is None):
                heapq.heappop(behind)
            if behind and (head is None or behind[0][0] < head):
                last, line = heapq.heappop(behind)
            elif head is not None:
                last, line = head, opened[head]
            else:
                return
            sequence = next(line.sequences.irange_key(last, last))
            yield sequence
            if line.opened_at is not None and (following := line.after(last)) is not None:
                heapq.heappush(behind, (following.number, line))

    def _open_line(self, line: _Line, realtime: bool) -> None:
        """Enter an open line under the number of its first sequence, which may have changed."""
        first: Sequence = line.sequences[0]
        if line.opened_at != first.number:
            self._close_line(line, realtime)
            self._open[realtime][first.number] = line
            line.opened_at = first.number

    def _close_line(self, line: _Line, realtime: bool) -> None:
        if line.opened_at is not None:
            del self._open[realtime][line.opened_at]
            line.opened_at = None


def _asked_at(sequence: Sequence) -> tuple[float, int]:
    return sequence.times.submitted, sequence.number

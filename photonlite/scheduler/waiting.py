"""The waiting sequences of one class, by age and by image, and which of them may be ready to run.

```
line        sequences that wait for one image, oldest first; those without an image form one line too
open line   may be ready: opened whenever that can become true, closed when a look shows that it is not
```

Walking the open lines costs no more than what it finds, however many sequences wait in the others.
"""

import heapq
from collections.abc import Callable, Iterator
from operator import attrgetter

from sortedcontainers import SortedDict, SortedKeyList

from photonlite.sequence import Sequence

by_number: Callable[[Sequence], int] = attrgetter("number")


class _Line:
    """Sequences that become ready together."""

    __slots__ = ("opened_at", "sequences")

    def __init__(self) -> None:
        self.sequences: SortedKeyList[Sequence, int] = SortedKeyList(key=by_number)
        self.opened_at: int | None = None  # number of the first one while the line is open

    def after(self, number: int) -> Sequence | None:
        """Return the first sequence whose number is larger."""
        return next(self.sequences.irange_key(min_key=number, inclusive=(False, True)), None)


class WaitingQueue:
    """Sequences that are not admitted, or pre-empted, oldest first.

    Adding, removing and finding one takes time in the logarithm of how many there are.
    """

    def __init__(self) -> None:
        self._ordered: SortedKeyList[Sequence, int] = SortedKeyList(key=by_number)
        self._lines: dict[str | None, _Line] = {}
        self._open: SortedDict[int, _Line] = SortedDict()

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._ordered)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._ordered

    @property
    def wants_images(self) -> bool:
        """Whether any sequence is about an image."""
        return len(self._lines) > (None in self._lines)

    def first(self, count: int) -> list[Sequence]:
        """Return the oldest, so many at most."""
        oldest: list[Sequence] = self._ordered[:count]
        return oldest

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence by its age; it may be ready."""
        self._ordered.add(sequence)
        if (line := self._lines.get(sequence.image_key)) is None:
            line = self._lines[sequence.image_key] = _Line()
        line.sequences.add(sequence)
        self._open_line(line)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; ValueError if it is not there."""
        self._ordered.remove(sequence)
        line = self._lines[sequence.image_key]
        line.sequences.remove(sequence)
        if not line.sequences:
            self._close_line(line)
            del self._lines[sequence.image_key]
        elif line.opened_at is not None:
            self._open_line(line)

    def first_about(self, key: str) -> Sequence | None:
        """Return the oldest sequence that waits for an image."""
        line = self._lines.get(key)
        return None if line is None else line.sequences[0]

    def open(self, key: str) -> None:
        """Note that sequences which wait for an image may be ready: it is encoded, or cached."""
        if (line := self._lines.get(key)) is not None:
            self._open_line(line)

    def close(self, sequence: Sequence) -> None:
        """Note that neither a sequence nor the others that wait for the same image are ready."""
        self._close_line(self._lines[sequence.image_key])

    def candidates(self) -> Iterator[Sequence]:
        """Walk the sequences that may be ready, oldest first.

        The caller may remove the sequence that it has just got, or close its line.
        """
        opened, behind = self._open, list[tuple[int, _Line]]()
        last = -1
        while True:
            # The next one is the first of a line that was not reached yet, or the next of a line that was.
            head = next(opened.irange(minimum=last, inclusive=(False, True)), None)
            while behind and (behind[0][0] <= last or behind[0][1].opened_at is None):
                heapq.heappop(behind)
            if behind and (head is None or behind[0][0] < head):
                last, line = heapq.heappop(behind)
            elif head is not None:
                last, line = head, opened[head]
            else:
                return
            yield next(line.sequences.irange_key(last, last))
            if line.opened_at is not None and (following := line.after(last)) is not None:
                heapq.heappush(behind, (following.number, line))

    def _open_line(self, line: _Line) -> None:
        """Enter an open line under the number of its first sequence, which may have changed."""
        first: Sequence = line.sequences[0]
        if line.opened_at != first.number:
            self._close_line(line)
            self._open[first.number] = line
            line.opened_at = first.number

    def _close_line(self, line: _Line) -> None:
        if line.opened_at is not None:
            del self._open[line.opened_at]
            line.opened_at = None

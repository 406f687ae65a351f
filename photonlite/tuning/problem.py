"""What is to be scheduled: operations, cut into nano-operations that cover ranges of the batch.

```
encode    crops [0, 9)      one piece, or [0, 5) and [5, 9)
decode    steps [0, 6)      pieces follow one another: `serial`
```
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from photonlite.errors import TuningError
from photonlite.tuning.interference import Resource


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a step.

    Attributes:
        name: Of the operation.
        resource: What bounds it; operations of one resource never run at once.
        batch: How much there is to do: crops, rows, steps.
        seconds: Alone on the whole card, by size of the piece.
        serial: Whether each piece reads the results of the one before.
    """

    name: str
    resource: Resource
    batch: int
    seconds: Mapping[int, float]
    serial: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A nano-operation: positions [begin, end) of an operation's batch."""

    operation: str
    resource: Resource
    begin: int
    end: int
    seconds: float  # alone on the whole card

    def __str__(self) -> str:
        return f"{self.operation} {self.begin}:{self.end}"


@dataclass(frozen=True, slots=True)
class Cut:
    """All pieces of a step, and for each the pieces that have to end before it begins, by index."""

    pieces: tuple[Piece, ...]
    before: tuple[frozenset[int], ...]


def cuts_of(operations: Sequence[Operation], most: int) -> Iterator[Cut]:
    """Yield all ways to cut operations into at most `most` pieces each, of sizes that were measured.

    Raises:
        TuningError: An operation has a time of 0 or less, or no sizes that were measured fill its batch.
    """
    ways = []
    for operation in operations:
        if not all(seconds > 0 for seconds in operation.seconds.values()):
            raise TuningError(f"operation {operation.name!r} needs seconds above 0, has {operation.seconds}")
        found = list(_compositions(operation.batch, sorted(operation.seconds), most))
        if not found:
            raise TuningError(
                f"no sizes of {operation.name!r} that were measured, {sorted(operation.seconds)}, fill its batch of "
                f"{operation.batch} with at most {most} pieces"
            )
        ways.append([(operation, sizes) for sizes in found])
    for chosen in itertools.product(*ways):
        yield _cut(chosen)


def _cut(chosen: Sequence[tuple[Operation, tuple[int, ...]]]) -> Cut:
    pieces: list[Piece] = []
    before: list[frozenset[int]] = []
    for operation, sizes in chosen:
        first, begin = len(pieces), 0
        for size in sizes:
            before.append(frozenset(range(first, len(pieces))) if operation.serial else frozenset())
            pieces.append(Piece(operation.name, operation.resource, begin, begin + size, operation.seconds[size]))
            begin += size
    return Cut(tuple(pieces), tuple(before))


def _compositions(batch: int, sizes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield ordered sums of at most `most` sizes that make the batch."""
    if batch == 0:
        yield ()
    elif most:
        for size in sizes:
            if size <= batch:
                for rest in _compositions(batch - size, sizes, most - 1):
                    yield (size, *rest)

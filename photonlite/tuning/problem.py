"""What is to be scheduled: operations, cut into nano-operations that cover ranges of the batch.

```
encode    crops [0, 9)      one piece, or [0, 5) and [5, 9)
decode    steps [0, 6)      pieces follow one another: `serial`
```

A piece waits for the pieces of its operation's parents whose ranges meet its own. Ranges of batches of different sizes
are compared as shares of their batches.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

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
        after: Names of the operations whose results it reads.
        serial: Whether each piece reads the results of the one before.
    """

    name: str
    resource: Resource
    batch: int
    seconds: Mapping[int, float]
    after: tuple[str, ...] = ()
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


def check_operations(operations: Sequence[Operation]) -> None:
    """Check names, times and dependencies.

    Raises:
        TuningError: There are none, one has no batch or times, a name is twice there or unknown, or there is a cycle.
    """
    named = {operation.name: operation for operation in operations}
    if not operations:
        raise TuningError("there is no operation to schedule: give at least one")
    if len(named) < len(operations):
        raise TuningError("two operations have one name: give each its own")
    for operation in operations:
        if operation.batch < 1 or not operation.seconds or not all(one > 0 for one in operation.seconds.values()):
            raise TuningError(
                f"operation {operation.name!r} needs a batch of at least 1, and seconds above 0 for sizes"
            )
        for name in operation.after:
            if name not in named:
                raise TuningError(f"operation {operation.name!r} waits for {name!r}, which is no operation")
    done: set[str] = set()
    while len(done) < len(named):
        ready = {name for name, one in named.items() if name not in done and done.issuperset(one.after)}
        if not ready:
            raise TuningError(f"operations wait for each other in a cycle: {', '.join(sorted(set(named) - done))}")
        done |= ready


def cuts_of(operations: Sequence[Operation], most: int) -> Iterator[Cut]:
    """Yield all ways to cut operations into at most `most` pieces each, of sizes that were measured.

    Raises:
        TuningError: See `check_operations`, or no sizes that were measured fill a batch.
    """
    check_operations(operations)
    ways = []
    for operation in operations:
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
    for operation, sizes in chosen:
        begin = 0
        for size in sizes:
            piece = Piece(operation.name, operation.resource, begin, begin + size, operation.seconds[size])
            pieces.append(piece)
            begin += size
    named = {operation.name: operation for operation, _ in chosen}
    before = tuple(
        frozenset(index for index, other in enumerate(pieces) if _waits(piece, other, named)) for piece in pieces
    )
    return Cut(tuple(pieces), before)


def _waits(piece: Piece, other: Piece, named: Mapping[str, Operation]) -> bool:
    own, parent = named[piece.operation], named[other.operation]
    if own is parent:
        return own.serial and other.end <= piece.begin
    if other.operation not in own.after:
        return False
    begin, end = (Fraction(place, own.batch) for place in (piece.begin, piece.end))
    return Fraction(other.begin, parent.batch) < end and begin < Fraction(other.end, parent.batch)


def _compositions(batch: int, sizes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield ordered sums of at most `most` sizes that make the batch."""
    if batch == 0:
        yield ()
    elif most:
        for size in sizes:
            if size <= batch:
                for rest in _compositions(batch - size, sizes, most - 1):
                    yield (size, *rest)

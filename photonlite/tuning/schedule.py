"""Tuning files: what was measured on one card with one model, and the schedules that the search made of it.

```json
{"format": 2,
 "made_for": {"card": "NVIDIA H200", "sms": "132", "model": "...", "torch": "2.11.0", ...},
 "use": 32,
 "streams": {"32": {
    "step_s": 0.0025,
    "pairs": [{"sms": 64, "compute": 0.51, "other": 0.63}],
    "schedule": {
        "operations": [{"name": "encode", "resource": "compute", "batch": 9, "seconds": {"9": 0.012}}, ...],
        "pieces": [{"operation": "encode", "begin": 0, "end": 9, "share": 0.51, "starts_s": 0.0, "ends_s": 0.024}, ...]
    }}}}
```

The engine divides the card as the schedule of `use` streams does: pieces of "encode" with a share below 1 say how. It
keeps one division beside the whole card. A schedule may be replaced by hand: every file is checked when it is read.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair, Resource, Table, table_of
from photonlite.tuning.problem import Operation, check_operations
from photonlite.tuning.search import Found

FORMAT = 2
_SUBJECT = ("card", "sms", "model", "weights")  # the other names in `made_for` are versions
_SLACK = 1e-6  # of sums of shares, and of times as a share of the makespan


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of an operation, positions [begin, end) of its batch, and when it runs."""

    operation: str
    begin: int
    end: int
    share: float
    starts_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Operations of a step and when their pieces run.

    Raises:
        TuningError: The schedule is impossible; the message says which rule it breaks.
    """

    operations: tuple[Operation, ...]
    pieces: tuple[Slot, ...]

    def __post_init__(self) -> None:
        check_operations(self.operations)
        named = {operation.name: operation for operation in self.operations}
        for slot in self.pieces:
            if slot.operation not in named:
                raise TuningError(f"a piece is of {slot.operation!r}, which is no operation")
            if not (0 < slot.share <= 1 and 0 <= slot.starts_s < slot.ends_s < math.inf):
                raise TuningError(f"a share must be in (0, 1] and times must ascend from 0, got {slot}")
        for operation in self.operations:
            if operation.batch not in operation.seconds:
                raise TuningError(f"operation {operation.name!r} has no seconds for its batch of {operation.batch}")
            _check_covered(operation, [slot for slot in self.pieces if slot.operation == operation.name])
        _check_order(named, self.pieces, _SLACK * self.makespan)
        _check_moments(named, self.pieces, _SLACK * self.makespan)

    @property
    def makespan(self) -> float:
        """Seconds until the last piece has ended."""
        return max(slot.ends_s for slot in self.pieces)

    @property
    def turns(self) -> float:
        """Seconds of the same operations one after the other, each as a whole on the whole card."""
        return sum(operation.seconds[operation.batch] for operation in self.operations)

    @classmethod
    def of(cls, operations: Sequence[Operation], found: Found) -> "Schedule":
        """Make a schedule of what a search found."""
        pieces = [
            Slot(piece.operation, piece.begin, piece.end, share, starts, ends)
            for piece, (starts, ends, share) in zip(found.cut.pieces, found.plan.slots, strict=True)
        ]
        return cls(tuple(operations), tuple(sorted(pieces, key=lambda slot: (slot.starts_s, slot.operation))))


@dataclass(frozen=True, slots=True)
class StreamTuning:
    """What was measured while some number of streams decoded, and the schedule for them.

    Attributes:
        step_s: Seconds of a decode step alone on the whole card.
        pairs: Of an encoding and such steps, in divisions of the card.
        schedule: Of one encoding and about as long of decoding.

    Raises:
        TuningError: A number is impossible, an operation is missing, or the schedule divides the card in a way that was
            not measured, or in two ways.
    """

    step_s: float
    pairs: tuple[Pair, ...]
    schedule: Schedule

    def __post_init__(self) -> None:
        if not 0 < self.step_s < math.inf:
            raise TuningError(f"a decode step takes more than 0 s, this one {self.step_s}")
        for pair in self.pairs:
            if not (0 < pair.compute < math.inf and 0 < pair.other < math.inf):
                raise TuningError(f"a pair needs speeds above 0, one is {pair}")
        resources = {operation.name: operation.resource for operation in self.schedule.operations}
        for name, resource in (("encode", "compute"), ("decode", "memory")):
            if resources.get(name) != resource:
                raise TuningError(f"the schedule has no operation {name!r} that {resource} bounds: {resources}")
        self.decode_sms()

    @property
    def gain(self) -> float:
        """How much sooner the schedule ends than taking turns."""
        return self.schedule.turns / self.schedule.makespan

    def decode_sms(self) -> int | None:
        """Return the SMs of decoding while the encoder has a part of the card; None where the schedule takes turns."""
        pieces = [slot for slot in self.schedule.pieces if slot.operation == "encode" and slot.share < 1 - _SLACK]
        if not pieces:
            return None
        shares = sorted(slot.share for slot in pieces)
        if shares[-1] - shares[0] > _SLACK:
            raise TuningError(f"'encode' has shares of {shares[0]:g} and {shares[-1]:g}: one below 1 is possible")
        points, wanted = table_of(self.pairs).points, 1 - shares[0]
        if not points or not points[0].share - _SLACK <= wanted <= points[-1].share + _SLACK:
            known = f"{1 - points[-1].share:.3f} to {1 - points[0].share:.3f} were" if points else "none was"
            raise TuningError(f"'encode' has a share of {shares[0]:g}: of those below 1 {known} measured")
        return round(float(np.interp(wanted, [point.share for point in points], [point.sms for point in points])))


@dataclass(frozen=True, slots=True)
class Tuning:
    """The content of a tuning file.

    Attributes:
        made_for: Card, model and versions, by name.
        streams: By how many decode.
        use: The number of streams whose schedule the engine follows.

    Raises:
        TuningError: There are no such streams, or a pair has SMs that the card has not.
    """

    made_for: Mapping[str, str]
    streams: Mapping[int, StreamTuning]
    use: int

    def __post_init__(self) -> None:
        if self.use not in self.streams:
            raise TuningError(f"it uses the schedule of {self.use} streams, but has {sorted(self.streams)}")
        for pair in (pair for one in self.streams.values() for pair in one.pairs):
            if type(pair.sms) is not int or not 0 < pair.sms < self.sms:
                raise TuningError(f"a pair has {pair.sms} SMs of decoding: give 1 to {self.sms - 1}")

    @property
    def sms(self) -> int:
        """SMs of the card."""
        return int(self.made_for["sms"])

    @property
    def decode_sms(self) -> int | None:
        """SMs of decoding where the encoder has a part of the card; None where the schedule in use takes turns."""
        return self.streams[self.use].decode_sms()

    @property
    def memory(self) -> Table:
        """R -> P of work that memory bounds, over all streams."""
        return table_of(pair for one in self.streams.values() for pair in one.pairs)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Schedules by what they are for."""
        return {f"{streams} streams": one.schedule for streams, one in self.streams.items()}


def tuning_file(folder: Path, made_for: Mapping[str, str]) -> Path:
    """Return the file for a card, a model and versions; files of other versions begin with the same letters."""
    subject = {name: value for name, value in made_for.items() if name in _SUBJECT}
    return folder / f"{_digest(subject)}-{_digest(made_for)}.json"


def find_tuning(folder: Path, made_for: Mapping[str, str]) -> Path | None:
    """Return the file for a card, a model and versions, else one of other versions, which is stale; None without."""
    path = tuning_file(folder, made_for)
    stale = sorted(folder.glob(f"{path.name.partition('-')[0]}-*.json"))
    return path if path in stale else next(iter(stale), None)


def _digest(names: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(names), sort_keys=True).encode()).hexdigest()[:12]


def save_tuning(path: Path, tuning: Tuning) -> None:
    """Write a tuning file, as a whole or not at all; may raise an OSError."""
    streams = {str(count): dataclasses.asdict(one) for count, one in tuning.streams.items()}
    content = {"format": FORMAT, "made_for": dict(tuning.made_for), "use": tuning.use, "streams": streams}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.replace(path)


def load_tuning(path: Path, made_for: Mapping[str, str] | None = None) -> Tuning:
    """Read a tuning file and check it.

    Args:
        path: Of the file.
        made_for: What it must have been made for; None takes any.

    Raises:
        TuningError: There is none, or it is damaged, of another card, model or version, or has an impossible schedule.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise TuningError(f"format {raw['format']} is not {FORMAT}: run photonlite tune again")
        found = {str(name): str(value) for name, value in raw["made_for"].items()}
        if made_for is not None and found != dict(made_for):
            raise TuningError(f"{_difference(found, made_for)}: run photonlite tune again")
        streams = {int(count): _streams(count, one) for count, one in raw["streams"].items()}
        return Tuning(found, streams, int(raw["use"]))
    except FileNotFoundError as cause:
        raise TuningError(f"there is no tuning file {path}: photonlite tune makes one") from cause
    except TuningError as cause:
        raise TuningError(f"tuning file {path} cannot be used: {cause}") from cause
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as cause:
        raise TuningError(f"tuning file {path} is damaged: {type(cause).__name__}: {cause!s:.200}") from cause


def _streams(count: str, raw: Mapping[str, Any]) -> StreamTuning:
    try:
        pairs = tuple(Pair(**pair) for pair in raw["pairs"])
        return StreamTuning(float(raw["step_s"]), pairs, _schedule(raw["schedule"]))
    except TuningError as cause:
        raise TuningError(f"{count} streams: {cause}") from cause


def _schedule(raw: Mapping[str, Any]) -> Schedule:
    operations = []
    for one in raw["operations"]:
        if one["resource"] not in get_args(Resource):
            raise TuningError(f"resource {one['resource']!r} is none of {', '.join(get_args(Resource))}")
        seconds = {int(size): float(value) for size, value in one["seconds"].items()}
        operations.append(Operation(**{**one, "seconds": seconds, "after": tuple(one.get("after", ()))}))
    return Schedule(tuple(operations), tuple(Slot(**slot) for slot in raw["pieces"]))


def _difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Say the first thing in which two makes differ."""
    name = next(name for name in {**wanted, **found} if found.get(name) != wanted.get(name))
    return f"it was made for {name} {found.get(name, 'unknown')!r}, this is {wanted.get(name, 'unknown')!r}"


def _check_covered(operation: Operation, slots: Sequence[Slot]) -> None:
    place = 0
    for slot in sorted(slots, key=lambda one: one.begin):
        if slot.begin != place or slot.end <= slot.begin:
            raise TuningError(f"pieces of {operation.name!r} leave out or repeat position {min(place, slot.begin)}")
        place = slot.end
    if place != operation.batch:
        raise TuningError(f"pieces of {operation.name!r} cover {place} positions of {operation.batch}")


def _check_order(named: Mapping[str, Operation], pieces: Sequence[Slot], slack: float) -> None:
    for slot in pieces:
        own = named[slot.operation]
        for other in pieces:
            parent = named[other.operation]
            follows = own is parent and own.serial and other.end <= slot.begin
            # Positions of batches of different sizes, compared as shares of their batches.
            meets = (
                other.begin * own.batch < slot.end * parent.batch and slot.begin * parent.batch < other.end * own.batch
            )
            if (follows or (other.operation in own.after and meets)) and slot.starts_s < other.ends_s - slack:
                raise TuningError(
                    f"{slot.operation} {slot.begin}:{slot.end} starts before {other.operation} "
                    f"{other.begin}:{other.end} has ended, for which it waits"
                )


def _check_moments(named: Mapping[str, Operation], pieces: Sequence[Slot], slack: float) -> None:
    for slot in pieces:  # sums are largest where a piece starts
        running = [
            one for one in pieces if one.starts_s <= slot.starts_s + slack and slot.starts_s < one.ends_s - slack
        ]
        total = sum(one.share for one in running)
        if total > 1 + _SLACK:
            raise TuningError(f"shares sum to {total:.3f} after {1e3 * slot.starts_s:.3f} ms, at most 1 is there")
        resources = [named[one.operation].resource for one in running]
        if len(set(resources)) < len(resources):
            raise TuningError(f"two pieces of one resource run at once after {1e3 * slot.starts_s:.3f} ms")

"""Tuning files: measurements of one model on one GPU, and the best way to share the GPU found from them.

```json
{"format": 3,
 "made_for": {"card": "NVIDIA H200", "sms": "132", "model": "...", "torch": "2.11.0", ...},
 "use": 32,
 "streams": {"32": {
    "step_s": 0.0025,
    "pairs": [{"sms": 64, "compute": 0.51, "other": 0.63}],
    "turns_s": 0.025, "planned_s": 0.021, "encode_share": 0.51}}}
```

The engine divides the GPU by the `encode_share` of `use` streams. A file may be edited by hand: every file is checked
when it is read.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair, Table, table_of

FORMAT = 3
_SUBJECT = ("card", "sms", "model", "weights")  # the other names in `made_for` are versions
_SLACK = 1e-6  # of a share


@dataclass(frozen=True, slots=True)
class StreamTuning:
    """Measurements while a number of streams decoded, and the schedule of one encoding and about as long of decoding.

    Attributes:
        step_s: Seconds of a decode step alone on the whole GPU.
        pairs: Speeds of an encoding and decode steps in divisions of the GPU.
        turns_s: Seconds of the schedule's work in turns on the whole GPU.
        planned_s: Seconds of the schedule.
        encode_share: Share of the GPU that the encoder has in the schedule; 1 takes turns.

    Raises:
        TuningError: A number is impossible, or the encoder's share was not measured.
    """

    step_s: float
    pairs: tuple[Pair, ...]
    turns_s: float
    planned_s: float
    encode_share: float

    def __post_init__(self) -> None:
        for name in ("step_s", "turns_s", "planned_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise TuningError(f"{name} is {getattr(self, name)}: give seconds above 0")
        for pair in self.pairs:
            if not (0 < pair.compute < math.inf and 0 < pair.other < math.inf):
                raise TuningError(f"a pair needs speeds above 0, one is {pair}")
        self.decode_sms()

    @property
    def gain(self) -> float:
        """How much sooner the schedule ends than taking turns."""
        return self.turns_s / self.planned_s

    def decode_sms(self) -> int | None:
        """Return the SMs of decoding beside the encoder; None if both take turns."""
        if self.encode_share == 1:
            return None
        points, wanted = table_of(self.pairs).points, 1 - self.encode_share
        if not points or not points[0].share - _SLACK <= wanted <= points[-1].share + _SLACK:
            known = f"{1 - points[-1].share:.3f} to {1 - points[0].share:.3f} were" if points else "none was"
            raise TuningError(f"encode_share is {self.encode_share:g}: of shares below 1 {known} measured")
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
        TuningError: There is none, or it is damaged, of another card, model or version, or says something impossible.
    """
    try:
        raw = json.loads(path.read_bytes())
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
        times = {name: float(raw[name]) for name in ("step_s", "turns_s", "planned_s", "encode_share")}
        return StreamTuning(pairs=tuple(Pair(**pair) for pair in raw["pairs"]), **times)
    except TuningError as cause:
        raise TuningError(f"{count} streams: {cause}") from cause


def _difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Say the first thing in which two makes differ."""
    name = next(name for name in {**wanted, **found} if found.get(name) != wanted.get(name))
    return f"it was made for {name} {found.get(name, 'unknown')!r}, this is {wanted.get(name, 'unknown')!r}"

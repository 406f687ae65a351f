"""What was measured, as rows of a table and of a JSON file."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.bubble.report import many, table
from photonlite.tuning.paces import Pace

TURNS, STREAMS, PARTS = "turns", "plain streams", "parts"
PROGRAMS, TUNED = "fewer programs", "parts, own tilings"
HOWS = (TURNS, STREAMS, PARTS, PROGRAMS, TUNED)
"""How rows were measured, in the order of the table."""

HEAD = ["how", "streams", "SMs", "decode alone there", "encode alone there", "decode beside", "p99", "encode beside"]
HEAD += ["decode share", "encode share", "sum"]


@dataclass(frozen=True, slots=True)
class Row:
    """Decoding and encoding at once, or taking turns.

    Attributes:
        how: In turns, on plain streams, in parts, with fewer programs, or in parts with tilings made for them.
        streams: Sequences that are decoded.
        sms: Of decoding and of encoding.
        decode_whole: Seconds of a step alone on the whole card.
        encode_whole: Seconds of an encoding alone on the whole card.
        decode_there: Decoding alone where it runs.
        encode_there: Encoding alone where it runs.
        decode: Decoding beside encoding; its p99 is that of the time between tokens.
        encode: Encoding beside decoding.
        note: What else is to be known.
    """

    how: str
    streams: int
    sms: tuple[int, int]
    decode_whole: float
    encode_whole: float
    decode_there: Pace
    encode_there: Pace
    decode: Pace
    encode: Pace
    note: str = ""

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the speeds alone on the whole card, of decoding and of encoding."""
        return self.decode_whole / self.decode.mean, self.encode_whole / self.encode.mean

    @property
    def sum(self) -> float:
        """Sum of the shares: 1 where taking turns costs nothing."""
        return sum(self.shares)

    def cells(self) -> list[str]:
        """Write the row: steps in milliseconds, encodings per second."""
        there, beside = 1e3 * self.decode_there.mean, 1e3 * self.decode.mean
        cells = [self.how, str(self.streams), f"{self.sms[0]} + {self.sms[1]}", f"{there:.2f} ms"]
        cells += [f"{1 / self.encode_there.mean:.1f}/s", f"{beside:.2f} ms", f"{1e3 * self.decode.p99:.2f}"]
        cells += [f"{1 / self.encode.mean:.1f}/s", *(f"{share:.2f}" for share in self.shares), f"{self.sum:.2f}"]
        return cells

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Row":
        """Make a row of what `dataclasses.asdict` made of one."""
        paces = {name: Pace(**raw[name]) for name in ("decode_there", "encode_there", "decode", "encode")}
        return cls(**{**raw, **paces, "sms": tuple(raw["sms"])})


def rows_table(rows: Sequence[Row]) -> str:
    """Write rows as a table, and their notes below."""
    notes = [f"- {row.how}, {many(row.streams)}, {row.sms[0]} SMs: {row.note}" for row in rows if row.note]
    return table(HEAD, [row.cells() for row in rows]) + ("\n\n" + "\n".join(notes) if notes else "")


def best_split(rows: Sequence[Row], streams: int) -> tuple[int, int] | None:
    """Return the SMs of the parts with the largest sum at a number of streams; None without rows in parts."""
    found = [row for row in rows if row.how == PARTS and row.streams == streams]
    return max(found, key=lambda row: row.sum).sms if found else None


def save_rows(path: Path, rows: Sequence[Row], about: Mapping[str, str]) -> None:
    """Write rows as JSON, with the machine and the command in `about`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": dict(about), "rows": [dataclasses.asdict(row) for row in rows]}, indent=1))


def load_rows(path: Path) -> tuple[list[Row], dict[str, str]]:
    """Read what `save_rows` wrote."""
    raw = json.loads(path.read_text())
    return [Row.from_dict(one) for one in raw["rows"]], raw["about"]

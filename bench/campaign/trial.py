"""What a trial is: cases drawn from a seed and a running number, in batches, each with its outcome."""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

TINY: Final = Path(__file__).resolve().parents[2] / "tests" / "golden" / "moondream-tiny"
"""A checkpoint with random weights: the whole way of a request, in milliseconds."""

NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Outcome(NamedTuple):
    """What became of one case.

    Attributes:
        number: Of the case: with the seed it says all about it.
        failure: One line where the case failed, else empty.
        figures: Measurements, of which the largest is kept.
        counts: What is added up, such as answers by status.
    """

    number: int
    failure: str = ""
    figures: Mapping[str, float] = NONE
    counts: Mapping[str, int] = NONE


Batches = Generator[list[Outcome], None, None]
"""Outcomes in batches, without end unless the trial has one; closing it ends its servers."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all trials of a run share.

    Attributes:
        seed: Cases are drawn from it and their number.
        until: When the trial has to end, in seconds of `time.monotonic`.
        model: Checkpoint that is served.
    """

    seed: int
    until: float
    model: Path = field(default=TINY)

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        name: On the command line.
        title: What is counted, for the report.
        aim: Number of cases to reach.
        judged: What makes a case fail, for the report.
        run: Runs cases from a number on.
        adds_up: Whether cases of several runs add up; else the longest run counts.
    """

    name: str
    title: str
    aim: int
    judged: str
    run: Callable[[Setup, int], Batches]
    adds_up: bool = True

"""What has been counted so far, in a JSON file that is replaced as a whole after each batch."""

import dataclasses
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.campaign.trial import Outcome

KEPT_FAILURES: Final = 100  # of a trial; further ones are only counted


@dataclass
class Tally:
    """What a trial has counted.

    Attributes:
        counted: Cases.
        next: Number of the next case.
        failed: Cases that failed.
        failures: The first of them: number, seed and a line.
        figures: The largest value of each measurement.
        counts: Sums.
        seconds: Spent.
    """

    counted: int = 0
    next: int = 0
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, outcomes: Iterable[Outcome], seed: int) -> None:
        for outcome in outcomes:
            self.counted += 1
            self.next = max(self.next, outcome.number + 1)
            if outcome.failure:
                self.fail(outcome.number, seed, outcome.failure)
            for name, value in outcome.figures.items():
                self.figures[name] = max(value, self.figures.get(name, value))
            for name, count in outcome.counts.items():
                self.counts[name] = self.counts.get(name, 0) + count

    def fail(self, number: int, seed: int, line: str) -> None:
        self.failed += 1
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append({"number": number, "seed": seed, "line": " ".join(line.split())[:500]})

    def plus(self, other: "Tally") -> "Tally":
        """Return the sum of two runs."""
        figures, counts = dict(self.figures), dict(self.counts)
        for name, value in other.figures.items():
            figures[name] = max(value, figures.get(name, value))
        for name, count in other.counts.items():
            counts[name] = counts.get(name, 0) + count
        return Tally(
            counted=self.counted + other.counted,
            next=max(self.next, other.next),
            failed=self.failed + other.failed,
            failures=(self.failures + other.failures)[:KEPT_FAILURES],
            figures=figures,
            counts=counts,
            seconds=self.seconds + other.seconds,
        )

    def longer_of(self, other: "Tally") -> "Tally":
        """Return the tally of the longer of two runs, with the failures, numbers and seconds of both."""
        longer = max(self, other, key=lambda one: one.counted)
        return dataclasses.replace(
            longer,
            next=max(self.next, other.next),
            failed=self.failed + other.failed,
            failures=(self.failures + other.failures)[:KEPT_FAILURES],
            seconds=self.seconds + other.seconds,
        )


@dataclass
class State:
    """Tallies by the name of the trial, and the runs that made them: date, seed, machine, versions."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read a state; an empty one where the file does not exist. Raises ValueError where it holds something else."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        try:
            return cls({name: Tally(**tally) for name, tally in raw["tallies"].items()}, list(raw["runs"]))
        except (AttributeError, KeyError, TypeError) as cause:
            message = f"{path} is not a state of the campaign: move it away, or name another with --state"
            raise ValueError(message) from cause

    def add(self, other: "State", longest: Collection[str] = ()) -> None:
        """Add the runs of another state; of trials named in `longest`, only the longer run counts.

        Raises ValueError where one of the runs has been added before.
        """
        for run in other.runs:
            if run in self.runs:
                raise ValueError(f"the run of {run['date']} with seed {run['seed']} has been added before")
        for name, tally in other.tallies.items():
            before = self.tallies.get(name, Tally())
            self.tallies[name] = before.longer_of(tally) if name in longest else before.plus(tally)
        self.runs += other.runs

    def save(self, path: Path) -> None:
        """Write the state; a process that is killed meanwhile leaves the old one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(self.as_dict(), file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def as_dict(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self)

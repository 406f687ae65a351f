"""The least makespan of pieces with given orders and options, as a mixed-integer programme for HiGHS.

Each piece takes one of its options: a share of the card and the seconds that it takes with that. Pieces of one resource
never run at once, and the shares of two pieces that run at once sum to at most 1. Variables of the programme:

```
s_i        begin of piece i            e_i = s_i + sum over options of x_io seconds_io
x_io       1 for its option            r_i =       sum over options of x_io share_io
a, b, o    of a pair i, j that nothing orders: i first, j first, both at once; one of them is 1
           s_j >= e_i - M (1 - a)      s_i >= e_j - M (1 - b)      r_i + r_j <= 1 + (1 - o)
```
"""

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from photonlite.errors import MissingDependencyError, TuningError
from photonlite.tuning.problem import Cut

Option = tuple[float, float]  # share of the card, seconds

SLACK = 1e-9  # of sums of shares


@dataclass(frozen=True, slots=True)
class Plan:
    """When each piece runs, in the order of the pieces: begin, end and share."""

    slots: tuple[tuple[float, float, float], ...]

    @property
    def makespan(self) -> float:
        """End of the last piece."""
        return max(end for _, end, _ in self.slots)


def solve(
    cut: Cut, before: Sequence[frozenset[int]], options: Sequence[Sequence[Option]], time_limit: float = 20.0
) -> Plan:
    """Return a plan of least makespan, or the best that was found within `time_limit` seconds.

    Raises:
        MissingDependencyError: SciPy is not installed.
        TuningError: Nothing was found in time.
    """
    unit = max(seconds for own in options for _, seconds in own)  # tolerances of the solver are absolute
    given, options = options, [[(share, seconds / unit) for share, seconds in own] for own in options]
    horizon = sum(max(seconds for _, seconds in own) for own in options)
    programme = _Programme(horizon)
    begins = [programme.variable() for _ in cut.pieces]
    takes = [[programme.variable(1, integer=True) for _ in own] for own in options]
    for index, own in enumerate(takes):
        programme.add(dict.fromkeys(own, 1.0), 1, 1)
        programme.add({programme.makespan: 1.0} | programme.end(begins[index], own, options[index], -1), 0)
        for earlier in before[index]:
            ended = programme.end(begins[earlier], takes[earlier], options[earlier], -1)
            programme.add({begins[index]: 1.0} | ended, 0)
    for i, j in itertools.combinations(range(len(cut.pieces)), 2):
        if i not in before[j] and j not in before[i]:
            together = cut.pieces[i].resource != cut.pieces[j].resource
            programme.relate((i, j), begins, takes, options, together=together)
    values = programme.minimise(time_limit)
    # Exact times, which the solver has up to its tolerance: each piece as early as those in front of it allow.
    placed: dict[int, tuple[float, float, float]] = {}
    for index in sorted(range(len(takes)), key=lambda one: values[begins[one]]):
        share, seconds = given[index][max(range(len(takes[index])), key=lambda one: values[takes[index][one]])]
        begin = earliest_begin(cut, placed, index, before[index], (share, seconds))
        placed[index] = (begin, begin + seconds, share)
    return Plan(tuple(placed[index] for index in range(len(takes))))


class _Programme:
    """Variables and rows of a mixed-integer programme that minimises a makespan."""

    def __init__(self, horizon: float) -> None:
        self._horizon = horizon
        self._upper: list[float] = []
        self._integer: list[int] = []
        self._rows: list[tuple[Mapping[int, float], float, float]] = []
        self.makespan = self.variable()

    def variable(self, upper: float = math.inf, *, integer: bool = False) -> int:
        self._upper.append(upper)
        self._integer.append(int(integer))
        return len(self._upper) - 1

    def add(self, row: Mapping[int, float], low: float, high: float = math.inf) -> None:
        self._rows.append((row, low, high))

    @staticmethod
    def end(begin: int, takes: Sequence[int], options: Sequence[Option], sign: float) -> dict[int, float]:
        """Return the end of a piece as a row, times `sign`."""
        own = {take: sign * seconds for take, (_, seconds) in zip(takes, options, strict=True)}
        return {begin: sign} | own

    def relate(
        self,
        pair: tuple[int, int],
        begins: Sequence[int],
        takes: Sequence[Sequence[int]],
        options: Sequence[Sequence[Option]],
        *,
        together: bool,
    ) -> None:
        """Let a pair run one after the other or, if they may, at once."""
        first, second = (self.variable(1, integer=True) for _ in range(2))
        both = self.variable(1 if together else 0, integer=True)
        self.add({first: 1.0, second: 1.0, both: 1.0}, 1, 1)
        for (i, j), goes in ((pair, first), (pair[::-1], second)):
            ended = self.end(begins[i], takes[i], options[i], -1)
            self.add({begins[j]: 1.0, goes: -self._horizon} | ended, -self._horizon)
        if together:  # one of each resource: no third piece can meet both
            row = {take: share for i in pair for take, (share, _) in zip(takes[i], options[i], strict=True)}
            self.add(row | {both: 1.0}, -math.inf, 2)

    def minimise(self, time_limit: float) -> Any:
        optimize, sparse = scipy_module("scipy.optimize"), scipy_module("scipy.sparse")
        entries = [
            (place, index, value) for place, (row, _, _) in enumerate(self._rows) for index, value in row.items()
        ]
        places, indices, values = zip(*entries, strict=True)
        matrix = sparse.coo_array((values, (places, indices)), shape=(len(self._rows), len(self._upper))).tocsr()
        _, low, high = zip(*self._rows, strict=True)
        for presolve in (True, False):  # HiGHS 1.12 sometimes rejects what its own presolve made of the programme
            found = optimize.milp(
                [float(index == self.makespan) for index in range(len(self._upper))],
                integrality=self._integer,
                bounds=optimize.Bounds(0, self._upper),
                constraints=optimize.LinearConstraint(matrix, low, high),
                options={"time_limit": time_limit, "mip_rel_gap": 1e-9, "presolve": presolve},
            )
            if found.x is not None:
                return found.x
        raise TuningError(f"the search found no schedule within {time_limit:g} s: {found.message}")


def earliest_begin(
    cut: Cut, placed: Mapping[int, tuple[float, float, float]], index: int, waits: frozenset[int], option: Option
) -> float:
    """Return the earliest begin of a piece that leaves the placed ones as they are."""
    share, seconds = option
    ready = max((placed[other][1] for other in waits), default=0.0)
    for begin in sorted({ready, *(end for _, end, _ in placed.values() if end > ready)}):
        meets = [
            other for other, (low, high, _) in placed.items() if low < begin + seconds - 1e-12 and begin < high - 1e-12
        ]
        alone = all(cut.pieces[other].resource != cut.pieces[index].resource for other in meets)
        if alone and all(share + placed[other][2] <= 1 + SLACK for other in meets):
            return begin
    raise AssertionError("a piece can always begin after all others")


def scipy_module(module: str) -> Any:
    """Import a module of SciPy; MissingDependencyError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise MissingDependencyError("the search needs SciPy: pip install 'photonlite[tune]'") from cause

"""The two-stage search for the schedule of a step.

Stage I chooses the order of pieces of one resource for each way to cut operations, with times as if nothing disturbed
them. Its makespan is a lower bound of what any shares can reach, so ways to cut are tried from the least one on, and
the search ends where the bound passes the best schedule. Stage II keeps the order and chooses shares: a piece takes its
time alone, divided by P(R). A schedule has the whole card and at most one division of it, as the engine does: each
needs graphs of its own.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from photonlite.tuning.interference import Point, Resource, Table
from photonlite.tuning.plans import Option, Plan, best_plan
from photonlite.tuning.problem import Cut, Operation, cuts_of

MOST_PIECES = 3  # of an operation
LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule: pieces, and when each runs with which share."""

    cut: Cut
    plan: Plan


def search(
    operations: Sequence[Operation],
    tables: Mapping[Resource, Table],
    *,
    most: int = MOST_PIECES,
    limit_s: float = LIMIT_S,
) -> Found:
    """Return the schedule of least makespan, or the best one found within `limit_s` seconds.

    Args:
        operations: Of the step.
        tables: R -> P of memory work; P of work that arithmetic bounds is R.
        most: Pieces of an operation.
        limit_s: Seconds after which nothing more is tried; the first schedule is always completed.

    Raises:
        TuningError: See `cuts_of`.
    """
    begun = time.perf_counter()
    staged = []
    for cut in cuts_of(operations, most):
        first = best_plan(cut, cut.before, [[(0.0, piece.seconds)] for piece in cut.pieces])
        staged.append((first.makespan, len(cut.pieces), cut, _ordered(cut, first)))
    staged.sort(key=lambda one: one[:2])
    best: Found | None = None
    for bound, _, cut, before in staged:
        for options in _option_sets(cut, tables):
            if best is not None and (bound >= best.plan.makespan - 1e-12 or time.perf_counter() - begun > limit_s):
                return best
            plan = best_plan(cut, before, options)
            if best is None or plan.makespan < best.plan.makespan - 1e-12:
                best = Found(cut, plan)
    assert best is not None  # each way to cut has at least one set of options
    return best


def _ordered(cut: Cut, plan: Plan) -> list[frozenset[int]]:
    """Return the pieces that each piece waits for in the plan's order: all earlier pieces of its resource."""
    begins = [begin for begin, _, _ in plan.slots]
    return [
        frozenset(
            other
            for other, before in enumerate(cut.pieces)
            if before.resource == piece.resource and begins[other] < begins[index]
        )
        for index, piece in enumerate(cut.pieces)
    ]


def _option_sets(cut: Cut, tables: Mapping[Resource, Table]) -> Iterator[list[list[Option]]]:
    """Yield options of each piece for every division: the whole card, or a side of the division."""
    divisions: list[tuple[Resource | None, Point | None]] = [
        (resource, point) for resource, table in tables.items() for point in table.points
    ]
    for resource, point in divisions or [(None, None)]:
        options = []
        for piece in cut.pieces:
            shares = {1.0: 1.0}
            if point is not None and piece.resource == resource:
                shares[point.share] = point.speed
            elif point is not None and piece.resource == "compute":
                shares[1 - point.share] = 1 - point.share
            options.append([(share, piece.seconds / speed) for share, speed in shares.items()])
        yield options

"""What a share of the card is worth to work of each kind: the table R -> P.

R of work that arithmetic bounds is its speed beside other work as a share of its speed alone, so its P(R) is R. R of
the work beside it is 1 - that, and P(R) is that work's own speed as a share of its speed alone. Shares that run at once
sum to at most 1. (NanoFlow, arXiv 2408.12757, section 4.1.)
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from photonlite.errors import TuningError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two works measured side by side.

    Attributes:
        sms: SMs of the work that arithmetic does not bound; all of them where nothing divides the card.
        compute: Speed of the work that arithmetic bounds, as a share of its speed alone on the whole card.
        other: The same of the work beside it.
    """

    sms: int
    compute: float
    other: float


@dataclass(frozen=True, slots=True)
class Point:
    """P at one R, and the SMs that give it.

    Attributes:
        share: R.
        speed: P, mean over the pairs that were measured.
        low: The least.
        high: The greatest.
        sms: Of the work that arithmetic does not bound.
    """

    share: float
    speed: float
    low: float
    high: float
    sms: int


@dataclass(frozen=True, slots=True)
class Table:
    """P over R for work of one kind beside work that arithmetic bounds, by ascending R.

    Raises:
        TuningError: Shares do not ascend or are outside of (0, 1), or a speed is outside of (0, 1].
    """

    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        shares = [point.share for point in self.points]
        if shares != sorted(set(shares)):
            raise TuningError(f"shares of an interference table must ascend, these are {shares}")
        for point in self.points:
            if not (0 < point.share < 1 and 0 < point.low <= point.speed <= point.high <= 1):
                raise TuningError(f"an interference table needs shares in (0, 1) and speeds in (0, 1], one is {point}")


def table_of(pairs: Iterable[Pair]) -> Table:
    """Return the table of pairs; those on as many SMs give one point and its spread.

    Points that another one beats, with no larger R and no smaller P, are left out, and so are pairs whose computing
    work did not slow down at all.
    """
    by_sms: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_sms.setdefault(pair.sms, []).append(pair)
    found = [_point(sms, group) for sms, group in by_sms.items()]
    kept: list[Point] = []
    for point in sorted(found, key=lambda one: (one.share, -one.speed)):
        if 0 < point.share < 1 and (not kept or (point.speed > kept[-1].speed and point.share > kept[-1].share)):
            kept.append(point)
    return Table(tuple(kept))


def _point(sms: int, pairs: Sequence[Pair]) -> Point:
    speeds = [min(1.0, pair.other) for pair in pairs]  # more is noise
    share = 1 - statistics.fmean(pair.compute for pair in pairs)
    return Point(share, statistics.fmean(speeds), min(speeds), max(speeds), sms)

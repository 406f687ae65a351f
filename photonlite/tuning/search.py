"""The two-stage search for a schedule: one image encoded beside about as long of decoding.

```
encode    crops [0, 9)      one piece, or [0, 6) and [6, 9)
decode    steps [0, 6)      one piece, or [0, 4) and [4, 6)
```

Stage I cuts both into pieces. Pieces of one kind follow one another, so a cut takes at least as long as either kind
does undisturbed; cuts are tried from the least bound on, and the search ends where the bound passes the best schedule.
Stage II gives each piece the whole GPU or its side of one division of it, as the engine has one: a piece takes its time
alone, divided by its speed there. Shares of two pieces that run at once sum to at most 1.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from photonlite.errors import TuningError
from photonlite.tuning.interference import Table

MOST_PIECES = 3  # of a kind
LIMIT_S = 30.0
_SHARE_SLACK = 1e-9
_SECONDS_SLACK = 1e-12

Option = tuple[float, float]  # share of the GPU, seconds
Slot = tuple[float, float, float]  # begin, end and share of a piece


@dataclass(frozen=True, slots=True)
class Plan:
    """When the pieces of each kind run, and with which share."""

    encode: tuple[Slot, ...]
    decode: tuple[Slot, ...]

    @property
    def makespan(self) -> float:
        """End of the last piece."""
        return max(self.encode[-1][1], self.decode[-1][1])

    @property
    def encode_share(self) -> float:
        """The encoder's share in the division that the plan uses; 1 if it uses none."""
        return min(share for _, _, share in self.encode)


def search(
    encode: Mapping[int, float],
    decode: Mapping[int, float],
    table: Table,
    *,
    most: int = MOST_PIECES,
    limit_s: float = LIMIT_S,
) -> Plan:
    """Return the plan of least makespan, or the best one found within `limit_s` seconds.

    Args:
        encode: Seconds of an encoding on the whole GPU by crops, up to the crops of the image.
        decode: The same of decode steps, up to the steps of the schedule.
        table: R -> P of decoding.
        most: Pieces of a kind.
        limit_s: Seconds after which nothing more is tried; the first plan is always completed.

    Raises:
        TuningError: A time is not above 0.
    """
    begun, best = time.perf_counter(), None
    cuts = itertools.product(_cuts("encode", encode, most), _cuts("decode", decode, most))
    for cut in sorted(cuts, key=lambda cut: (_bound(cut), sum(map(len, cut)))):
        for point in table.points or (None,):
            if best is not None and (
                _bound(cut) >= best.makespan - _SECONDS_SLACK or time.perf_counter() - begun > limit_s
            ):
                return best
            # P(R) of encoding, which arithmetic bounds, is R.
            sides = ((1.0, 1.0),) * 2 if point is None else ((1 - point.share,) * 2, (point.share, point.speed))
            options = [[_options(seconds, side) for seconds in own] for own, side in zip(cut, sides, strict=True)]
            plan = best_plan(*options)
            if best is None or plan.makespan < best.makespan - _SECONDS_SLACK:
                best = plan
    assert best is not None
    return best


def _cuts(name: str, seconds: Mapping[int, float], most: int) -> list[tuple[float, ...]]:
    """Return the seconds of pieces, for all ordered sums of at most `most` sizes that make the largest."""
    if not all(one > 0 for one in seconds.values()):
        raise TuningError(f"{name!r} needs seconds above 0, has {dict(seconds)}")
    ways = itertools.chain.from_iterable(itertools.product(seconds, repeat=count) for count in range(1, most + 1))
    return [tuple(seconds[size] for size in sizes) for sizes in ways if sum(sizes) == max(seconds)]


def _bound(cut: Sequence[Sequence[float]]) -> float:
    return max(map(sum, cut))


def _options(seconds: float, side: tuple[float, float]) -> list[Option]:
    share, speed = side
    return [(1.0, seconds)] if share == 1 else [(1.0, seconds), (share, seconds / speed)]


def best_plan(encode: Sequence[Sequence[Option]], decode: Sequence[Sequence[Option]]) -> Plan:
    """Return a plan of least makespan by trying all orders and options: for a few pieces.

    Some plan of least makespan lets each piece begin as early as those placed before it allow, for some order (Kolisch
    and Hartmann, 1999, on serial schedule generation). Branches that cannot improve on the best plan are skipped.
    """
    best: list[Plan] = []

    def place(*placed: tuple[Slot, ...]) -> None:
        if best and max((own[-1][1] for own in placed if own), default=0.0) >= best[0].makespan - _SECONDS_SLACK:
            return
        if len(placed[0]) == len(encode) and len(placed[1]) == len(decode):
            best[:] = [Plan(*placed)]
            return
        for kind, options in enumerate((encode, decode)):
            own, other = placed[kind], placed[1 - kind]
            for share, seconds in options[len(own)] if len(own) < len(options) else ():
                begin = _earliest(own[-1][1] if own else 0.0, share, seconds, other)
                longer = (*own, (begin, begin + seconds, share))
                place(*((longer, other) if kind == 0 else (other, longer)))

    place((), ())
    return best[0]


def _earliest(ready: float, share: float, seconds: float, others: Sequence[Slot]) -> float:
    """Return when a piece that is ready can begin without changing the placed pieces of the other kind."""
    for begin in (ready, *(end for _, end, _ in others if end > ready)):
        end = begin + seconds - _SECONDS_SLACK
        meets = (one for low, high, one in others if low < end and begin < high - _SECONDS_SLACK)
        if all(share + one <= 1 + _SHARE_SLACK for one in meets):
            return begin
    raise AssertionError("a piece can always begin after all others")

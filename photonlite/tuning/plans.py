"""The plan of least makespan for pieces with given orders and options.

Each piece takes one of its options: a share of the GPU and the seconds that it takes with that. Pieces of one resource
never run at once, and the shares of two pieces that run at once sum to at most 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from photonlite.tuning.problem import Cut

Option = tuple[float, float]  # share of the GPU, seconds

_SHARE_SLACK = 1e-9
_SECONDS_SLACK = 1e-12


@dataclass(frozen=True, slots=True)
class Plan:
    """When each piece runs, in the order of the pieces: begin, end and share."""

    slots: tuple[tuple[float, float, float], ...]

    @property
    def makespan(self) -> float:
        """End of the last piece."""
        return max(end for _, end, _ in self.slots)


def best_plan(cut: Cut, before: Sequence[frozenset[int]], options: Sequence[Sequence[Option]]) -> Plan:
    """Return a plan of least makespan by trying all orders and options: for a few pieces.

    Some plan of least makespan lets each piece begin as early as those placed before it allow, for some order (Kolisch
    and Hartmann, 1999, on serial schedule generation). Branches that cannot improve on the best plan are skipped.
    """
    best: list[Plan] = []
    placed: dict[int, tuple[float, float, float]] = {}

    def place(latest: float) -> None:
        if best and latest >= best[0].makespan - _SECONDS_SLACK:
            return
        if len(placed) == len(cut.pieces):
            best[:] = [Plan(tuple(placed[index] for index in range(len(cut.pieces))))]
            return
        for index in range(len(cut.pieces)):
            if index in placed or not before[index] <= placed.keys():
                continue
            for share, seconds in options[index]:
                begin = _earliest(cut, placed, index, before[index], (share, seconds))
                placed[index] = (begin, begin + seconds, share)
                place(max(latest, begin + seconds))
                del placed[index]

    place(0.0)
    return best[0]


def _earliest(
    cut: Cut, placed: Mapping[int, tuple[float, float, float]], index: int, waits: frozenset[int], option: Option
) -> float:
    """Return the earliest begin of a piece that leaves the placed ones as they are."""
    share, seconds = option
    ready = max((placed[other][1] for other in waits), default=0.0)
    for begin in sorted({ready, *(end for _, end, _ in placed.values() if end > ready)}):
        end = begin + seconds - _SECONDS_SLACK
        meets = [other for other, (low, high, _) in placed.items() if low < end and begin < high - _SECONDS_SLACK]
        alone = all(cut.pieces[other].resource != cut.pieces[index].resource for other in meets)
        if alone and all(share + placed[other][2] <= 1 + _SHARE_SLACK for other in meets):
            return begin
    raise AssertionError("a piece can always begin after all others")

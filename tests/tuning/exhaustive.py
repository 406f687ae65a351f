"""A search of schedules that tries everything, as an oracle for the programme."""

from collections.abc import Sequence

from photonlite.tuning.problem import Cut
from photonlite.tuning.programme import Option, Plan, earliest_begin


def enumerate_best(cut: Cut, before: Sequence[frozenset[int]], options: Sequence[Sequence[Option]]) -> Plan:
    """Return a plan of least makespan by trying all orders and options: for a few pieces.

    Some plan of least makespan lets each piece begin as early as those placed before it allow, for some order (Kolisch
    and Hartmann, 1999, on serial schedule generation). Branches that cannot be better than the best are cut off.
    """
    best: list[Plan] = []
    placed: dict[int, tuple[float, float, float]] = {}

    def place(latest: float) -> None:
        if best and latest >= best[0].makespan - 1e-12:
            return
        if len(placed) == len(cut.pieces):
            best[:] = [Plan(tuple(placed[index] for index in range(len(cut.pieces))))]
            return
        for index in range(len(cut.pieces)):
            if index in placed or not before[index] <= placed.keys():
                continue
            for share, seconds in options[index]:
                begin = earliest_begin(cut, placed, index, before[index], (share, seconds))
                placed[index] = (begin, begin + seconds, share)
                place(max(latest, begin + seconds))
                del placed[index]

    place(0.0)
    return best[0]

"""Which of several ways to the same result is the quickest, measured on the card that will do the work."""

from collections.abc import Callable, Sequence

import torch

GAIN = 0.03
"""Share of its time that a way must gain on one before it to be preferred: less may be chance."""

ROUNDS = 5


def quickest(ways: Sequence[Callable[[], object]]) -> int:
    """Give the index of the way that takes the least time on the current CUDA stream.

    The ways take turns, so that a clock that changes meets all alike, and the shortest time of each counts. Among
    equals the first is chosen.

    Args:
        ways: What they launch; each has run before, so that nothing is compiled or planned here.
    """
    if len(ways) == 1:
        return 0
    return first_of_least([min(times) for times in zip(*(_round(ways) for _ in range(ROUNDS)), strict=True)])


def first_of_least(times: Sequence[float]) -> int:
    """Give the index of the first time that no later one undercuts by more than `GAIN`."""
    best = 0
    for index, time in enumerate(times):
        if time < times[best] * (1 - GAIN):
            best = index
    return best


def _round(ways: Sequence[Callable[[], object]]) -> list[float]:
    """Run each way once; give milliseconds."""
    times = []
    for way in ways:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        way()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)))
    return times

"""Both ways measured by turns."""

import statistics
import sys
import time
from collections.abc import Callable

STREAMS = (1, 4, 16)


def ratio_row(what: str, rounds: int, ask: Callable[[bool, int], None], streams: int) -> str:
    """Measure both ways alternately, after a warm-up; return their ratio: above 1, runs are faster."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for place in range(rounds + 1):
        for runs in (True, False):
            begun = time.perf_counter()
            ask(runs, streams)
            if place:
                seconds[runs].append(time.perf_counter() - begun)
    ratios = sorted(other / own for own, other in zip(seconds[True], seconds[False], strict=True))
    middle = statistics.median(seconds[False]) / statistics.median(seconds[True])
    own, other = (1e3 * statistics.median(seconds[runs]) for runs in (True, False))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    row = f"{what:<34}{middle:.2f} times as quick at once ({spread}), {own:.0f} in place of {other:.0f} ms"
    print(row, file=sys.stderr, flush=True)
    return row

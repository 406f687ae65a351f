"""Runs simulations: one that failed, or many.

```sh
python -m tests.simulation 4711             # one seed
python -m tests.simulation 4711 --trace     # and what happens in it
python -m tests.simulation 0 --ticks 100000 --stride 2    # seeds 0, 2, 4 ... up to so many ticks; prints what was seen
```
"""

import argparse
import gc
import json
import sys
import traceback
from collections import Counter

from photonlite.scheduler.fifo import FifoPolicy
from tests.simulation.simulator import Simulation


def run_many(
    first: int, stride: int, ticks: int, policy: type[FifoPolicy] | None = None
) -> tuple[Counter[str], str | None]:
    """Run seeds until `ticks` ticks are done.

    Returns:
        How often what happened, and what to say about the first seed that failed; None where all is well.
    """
    seen: Counter[str] = Counter()
    seed = first
    gc.collect()
    gc.disable()  # a simulation is one big cycle: between two of them is the time to collect, before caches are full
    try:
        while seen["ticks"] < ticks:
            simulation = Simulation(seed, policy=policy)
            simulation.run()
            seen.update(simulation.seen)
            seen["ticks"] += simulation.ticks
            seen["seeds"] += 1
            seed += stride
            del simulation
            gc.collect()
    except BaseException:
        return seen, f"{traceback.format_exc()}\nreplay with: python -m tests.simulation {seed} --trace"
    finally:
        gc.enable()
    return seen, None


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--ticks", type=int, default=0, help="go on with further seeds until so many ticks are done")
    parser.add_argument("--stride", type=int, default=1, help="from one seed to the next")
    arguments = parser.parse_args()
    if arguments.ticks:
        gc.freeze()  # collections walk simulations alone
        seen, failure = run_many(arguments.seed, arguments.stride, arguments.ticks)
        print(json.dumps({"seen": dict(sorted(seen.items())), "failure": failure}))
        return failure is not None
    simulation = Simulation(arguments.seed, print if arguments.trace else None)
    print(simulation.scenario)
    simulation.run()
    print(f"all well after {simulation.ticks} ticks: {dict(sorted(simulation.seen.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tokens that must follow, appended at once or decoded one by one: `python -m bench.forced_runs`.

```
agree     typed questions to the shipped checkpoint, on two engines that differ in `forced_runs` alone
typed     seconds of as many typed answers as there are streams, one by one over at once
boxes     the same of lists of ten boxes, as Qwen3-VL writes them: random weights of its shape, random prompts
modelled  the same lists on a device that is a table of times, with the scheduler and the engine's core as they are
```

On a card: `python -m bench.forced_runs --only boxes --device cuda --shape qwen3-vl-2b`. Coordinates have three digits.
Where the largest is 999, nothing but a separator may follow them; where it is 1000, as Qwen3-VL's, a digit may follow
100 to 200.
"""

import argparse
import sys
from collections.abc import Sequence

from bench.forced_runs.lists import boxes
from bench.forced_runs.modelled import modelled
from bench.forced_runs.typed import agree, typed
from bench.shapes import SHAPES

PARTS = ("agree", "typed", "boxes", "modelled")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.forced_runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shapes = ["tiny", *(name for name, shape in SHAPES.items() if shape.family == "qwen")]
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--shape", choices=shapes, default="tiny", help="of the model that lists boxes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--questions", type=int, default=2000, help="that `agree` asks")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each ratio, after a warm-up")
    options = parser.parse_args(arguments)
    lines: list[str] = []
    if "typed" in options.only:
        lines += typed(options.rounds, options.device)
    if "boxes" in options.only:
        lines += boxes(options.rounds, options.device, options.shape)
    if "modelled" in options.only:
        lines += modelled()
    if "agree" in options.only:
        lines += agree(options.questions, options.device)
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure the GPU bubble: `python -m bench.bubble`.

Requests are handed in together, prefilled together and decoded to their ends, on engines of depth 1 (blocking) and
depth 2 (pipelined) alternately. On a CUDA card the model has Moondream 2's shape and random weights; on a CPU it is the
shipped checkpoint, and figures are ratios. What has been measured is printed and written as it comes; a part that fails
leaves a gap.

parts:
  rounds   both depths with each workload and number of streams, and the cost model beside what was observed
  host     the functions of the engine thread
  kernels  the kernels of a decode step
  masks    masks finalized before the launch, against after it
  graphs   CUDA graphs on and off, at both depths
  padding  a batch padded to a larger graph, against a graph of its exact size
  pools    memory of the graphs of one slot and of two
  short    answers of 3 tokens to a queue of prompts, at both depths
  whole    one batch with long answers from the first launch to the last token
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.bubble.parts import PARTS, BubbleBench
from bench.bubble.subjects import (
    LENGTH,
    SPREAD,
    WORKLOADS,
)
from bench.bubble.whole_run import LENGTH as LONG
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError

CARD_STREAMS, CPU_STREAMS = (1, 8, 32), (1, 4)
CARD_PARTS = ("graphs", "padding", "pools")
"""Those that a CPU has not: it has no graphs."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bubble", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help="all on a card; rounds on a CPU")
    parser.add_argument("--streams", type=int, nargs="+", help="requests at a time; 1 8 32 on a card, 1 4 on a CPU")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3, help="of each kind; one more warms up")
    parser.add_argument("--spread", type=int, default=SPREAD, help="how far prompts are from their mean length at most")
    parser.add_argument("--tokens", type=int, default=LONG, help="of an answer in the whole run, if the context allows")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on a CPU: the others are the host's")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    parser.add_argument("--timeline", type=Path, metavar="DIR", help="folder for images of some periods")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="folder for traces that ui.perfetto.dev opens")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder for single rounds and the chart's data")
    options = parser.parse_args(arguments)
    try:
        options.device = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    if options.rounds < 1 or min(options.streams or [1]) < 1 or options.tokens < 2:
        parser.error("rounds and streams are at least 1, tokens 2")
    if not 0 <= options.spread < LENGTH - 1:
        parser.error(f"a spread lies between 0 and {LENGTH - 2}: answers have {LENGTH} tokens on average")
    cuda = options.device.type == "cuda"
    options.only = options.only or (list(PARTS) if cuda else ["rounds"])
    if not cuda and (without := [part for part in options.only if part in CARD_PARTS]):
        parser.error(f"{', '.join(without)} need a CUDA card, which has graphs")
    options.streams = sorted(set(options.streams or (CARD_STREAMS if cuda else CPU_STREAMS)))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse(arguments)
    if options.device.type != "cuda":
        torch.set_num_threads(options.threads)
    bench = BubbleBench(options, shlex.join(sys.argv[1:] if arguments is None else arguments))
    try:
        return bench.run()
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(main())

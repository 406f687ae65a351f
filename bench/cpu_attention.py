"""Attention of decode steps on a CPU: `python -m bench.cpu_attention`.

Each row reads what it sees, one after the other. The baseline gathers all rows' pages at once, as many for each as the
longest row has, and hides with a mask what a row does not see. Both take turns in one process: in whole requests to the
shipped checkpoint, whose image is encoded before, and on keys and values of random numbers in float32, with one thread,
as decode steps of a few rows have. Times do not transfer, so the figures are times of the baseline over those of the
engine: the median of the rounds, and their range.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import photonlite
from bench.bubble.report import table
from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.gpu.samples import Sample
from photonlite.device.cores import usable_cores
from photonlite.device.cpu import set_threads
from photonlite.kernels.paged_attention import paged_attention
from photonlite.kernels.reference import attention as reference

ROWS, LENGTHS = (1, 8), (200, 800)
HEADS = {"shipped": (4, 64), "Moondream 2": (32, 64)}  # and the size of one
ROUNDS, CLIENTS, PAGE = 15, 8, 16
IMAGE = Path(__file__).parents[1] / "assets" / "desk.png"


def padded(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
    *more: Any,
) -> torch.Tensor:  # fmt: skip
    """Attend as the baseline does, with as many pages for each row as the longest one has."""
    most = -(-int(lengths.max()) // keys.shape[1])
    return reference.paged_attention(q, keys, values, page_table[:, :most], lengths, *more)


def ratio(baseline: Callable[[], object], engine: Callable[[], object], rounds: int) -> str:
    """Time both in turns and return what the baseline takes, as a multiple."""
    ratios = []
    for number in range(rounds + 1):
        pair = [_timed(each) for each in ((baseline, engine) if number % 2 else (engine, baseline))]
        slow, fast = pair if number % 2 else reversed(pair)
        ratios.append(slow / fast)
    sample = Sample.of(ratios[1:])  # the first round warms up
    return f"{sample.median:.2f} ({sample.low:.2f} to {sample.high:.2f})"


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def kernel_rows(rounds: int) -> list[list[str]]:
    """Compare one layer's attention; returns rows of a table."""
    set_threads(1)
    found = []
    for name, (heads, dim) in HEADS.items():
        for rows in ROWS:
            for length in LENGTHS:
                pages = -(-length // PAGE)
                shape = (rows * pages, heads, PAGE, dim)
                keys, values = (torch.randn(shape).transpose(1, 2) for _ in range(2))
                places = torch.randperm(rows * pages, dtype=torch.int32).view(rows, pages)
                given = torch.randn(rows, heads, dim), keys, values, places, torch.full((rows,), length)
                slow, fast = (_often(attend, *given) for attend in (padded, paged_attention))
                found.append([name, str(rows), str(length), ratio(slow, fast, rounds)])
    return found


def _often(attend: Callable[..., torch.Tensor], *given: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            for _ in range(20):
                attend(*given)

    return run


def request_rows(rounds: int) -> list[list[str]]:
    """Compare requests to the shipped checkpoint; returns rows of a table."""
    with photonlite.load(device="cpu") as model:
        image = model.encode_image(IMAGE)
        caption = {"skill": "caption", "image": image, "length": "long"}
        tasks: dict[str, Callable[[], object]] = {
            "detect, boxes of two bananas": partial(model.detect, image, "banana"),
            "a long caption": partial(model.batch, [caption]),
            f"{CLIENTS} long captions at once": partial(model.batch, [caption] * CLIENTS),
        }
        return [[name, ratio(partial(_with_baseline, run), run, rounds)] for name, run in tasks.items()]


def _with_baseline(run: Callable[[], object]) -> None:
    with mock.patch("photonlite.runner.decode.paged_attention", padded):
        run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, help="Markdown file for the tables")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds is a number from 1 on")
    torch.manual_seed(0)
    page = Page("Attention of decode steps on a CPU", options.output)
    machine = f"{describe(torch.device('cpu'))}, {usable_cores()} cores"
    page.put(
        "",
        f"{datetime.date.today()}, {machine}; {options.rounds} rounds, both in turns.\nMade by "
        "`python -m bench.cpu_attention`. Clients that ask about one image have its pages in common.",
    )
    page.put("Requests about an encoded image", table(["request", "baseline / engine"], request_rows(options.rounds)))
    page.put("One layer", table(["shape", "rows", "positions", "baseline / engine"], kernel_rows(options.rounds)))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Decode steps on several cards: `python -m bench.ranks --device cuda --ranks 2`.

A step is that of `bench.steps`: on one card, and on several that share the model, where the parts of the logits are
joined and the chosen tokens broadcast, as in the engine. Ranks are processes, each with CUDA graphs of its own. They
add up in two ways: by one kernel that reads the other cards' memory, adds to the stream and normalises it
(`kernels.rank_sums`), and by NCCL. Such a sum alone is timed over 64 of them in one graph.

`--device cpu --tiny` rehearses over Gloo, without the kernel. For whole engines see `bench.decode --tensor-parallel`.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bench.bubble.report import many, table
from bench.bubble.subjects import fill_randomly
from bench.gpu.ceilings import measure_ceilings
from bench.gpu.clock import Clock
from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.gpu.samples import Sample
from bench.shapes import IN_PARTS, SHAPES, Shape
from bench.steps.subjects import Rows, Subject, make_subject
from photonlite.device.collectives import RankGroup
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError
from photonlite.kernels.rank_sums import RankSums
from photonlite.models.base import Head, StepDecoder
from photonlite.models.moondream import checkpoint as moondream
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import RankDecode as ParallelRankDecode
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.parallel import keep_share as keep_moondream
from photonlite.models.parallel import check_ranks
from photonlite.models.qwen import checkpoint as qwen
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.fused.decode import RankDecode
from photonlite.models.qwen.fused.layers import block_weights, rotary_rows
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.parallel import keep_share as keep_qwen
from photonlite.models.qwen.parallel import share_tied_head
from photonlite.runner.ranks.model import RankModel
from photonlite.runner.tokens import apply_head

_SUMS: Final = 64
_AIMS: Final = {("moondream2", 1): 0.75e-3}
_GAINS: Final = {("qwen3-vl-8b", 1): 1.6, ("qwen3-vl-8b", 32): 1.6}
_IMAGES: Final = {  # of a tower that is left out
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3
}  # fmt: skip
_HEAD: Final = ["step (ms)", "one card", "kernel", "least to most (runs)", "gain", "aim", "", "NCCL", "gain", "floor"]
_SUM_HEAD: Final = ["a sum (us)", "kernel, with norm", "NCCL, then add and norm"]


class RankRows(Rows):
    """Rows that take a step on all ranks."""

    def __init__(self, subject: Subject, ranks: RankGroup, streams: int, context: int) -> None:
        super().__init__(subject, streams, context)
        self._ranks = ranks
        for drawn in (self.rows, self._pending):
            ranks.broadcast(drawn)

    def fused(self) -> None:
        """Take a step as the engine does: every rank computes, and tokens are those of rank 0."""
        hidden = self.hidden()
        assert self._subject.head is not None
        self._choose(hidden, self._ranks.concat(apply_head(self._subject.head, hidden)))
        self._ranks.broadcast(self._pending)

    def hidden(self) -> Tensor:
        """Take a step up to raw hidden states."""
        assert self._subject.fused is not None
        return self._subject.fused(self._embedded(), self.next_positions(), self.cache)


def make_share(shape: Shape, device: torch.device, dtype: torch.dtype, ranks: RankGroup, *, tiny: bool) -> Subject:
    """Make a rank's part of a decoder with random weights."""
    raw = shape.tiny if tiny else shape.raw
    model: Any
    with torch.device("meta"):
        if shape.family == "moondream":
            model = MoondreamModel(MoondreamConfig.from_dict(raw))
            keep_moondream(model, ranks)
        else:
            config = QwenConfig.from_dict(raw)
            model = QwenModel(config, ImageSettings.from_dict(_IMAGES, config.vision))
            keep_qwen(model, ranks)
    if ranks.rank == 0:
        del model.vision
    model = model.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    fill_randomly(model, 0)
    decoder: StepDecoder
    if shape.family == "moondream":
        decoder = ParallelRankDecode(model.config.text, model.packed_blocks, ranks)
        words, head = model.text.wte, model.heads.text
    else:
        if model.text.head is None:
            share_tied_head(model, ranks)
        decoder = RankDecode(block_weights(model.text), rotary_rows(model.config.text, device), ranks)
        words, head = model.text.words, Head(model.heads.text.norm, ((model.text.head.weight, None),))
    return Subject(RankModel(model, ranks).shape, words, decoder, model.forward, head, model.logits, weight_bytes=0)


@dataclass(frozen=True, slots=True)
class Run:
    """What every rank does, in the same order."""

    device: str
    ranks: int
    shapes: tuple[str, ...]
    streams: tuple[int, ...]
    context: int
    rounds: int
    tiny: bool
    output: Path | None
    meeting: str  # a file


@contextmanager
def by_nccl(ranks: RankGroup) -> Iterator[None]:
    """Add up by collective operations."""
    peers, ranks.peers = ranks.peers, None
    try:
        yield
    finally:
        ranks.peers = peers


def time_step(clock: Clock, rows: RankRows, ranks: RankGroup, rounds: int) -> tuple[Sample, Sample]:
    """Time a step both ways: by the kernel, where there is one, and by NCCL."""
    kernel = clock.measure(rows.fused, rounds=rounds, graphed=True)
    with by_nccl(ranks):
        return kernel, clock.measure(rows.fused, rounds=rounds, graphed=True)


def check_sums(rows: RankRows, ranks: RankGroup) -> None:
    """Compare a step's states with those that collective operations give: they round the same sums."""
    found = rows.hidden().float()
    with by_nccl(ranks):
        wanted = rows.hidden().float()
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


def time_sum(clock: Clock, ranks: RankGroup, streams: int, dim: int, rounds: int) -> tuple[float, float]:
    """Time a sum and the norm behind it both ways, in seconds."""
    device = clock.device
    x = torch.randn(streams, dim, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    sums, norm = RankSums(ranks, dim, _SUMS), (torch.ones_like(x[0]), torch.zeros_like(x[0]), 1e-5)

    def add_up() -> None:
        for index in range(_SUMS):
            sums.add(x, sums.partial(x, index), index, norm)

    kernel = clock.measure(add_up, rounds=rounds, graphed=True).median / _SUMS
    with by_nccl(ranks):
        return kernel, clock.measure(add_up, rounds=rounds, graphed=True).median / _SUMS


@torch.inference_mode()
def take_part(rank: int, run: Run) -> None:
    """Measure as one rank; rank 0 reports."""
    device = torch.device(run.device, rank) if run.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    ranks, clock = RankGroup(rank, run.ranks), Clock(device)
    ranks.connect(os.open(run.meeting, os.O_RDWR), device)
    page = Page("Decode steps on several cards", run.output if rank == 0 else None)
    ways = "the other cards' memory" if ranks.peers is not None else "NOT AVAILABLE: both columns are collectives"
    kind = str(dtype).removeprefix("torch.")
    page.put(
        "",
        f"{time.strftime('%Y-%m-%d')}, {run.ranks} x {describe(device)}. Random weights in {kind}, context "
        f"{run.context}. The kernel reads {ways}. `python -m bench.ranks --device {run.device} --ranks {run.ranks}`",
    )
    size, side = (1 << 32, 8192) if device.type == "cuda" else (1 << 24, 256)
    ceilings = measure_ceilings(clock, dtype, size=size, side=side)
    rows, sums = [], []
    for name in run.shapes:
        alone = _alone(rank, run, name, clock, dtype)
        share = make_share(SHAPES[name], device, dtype, ranks, tiny=run.tiny)
        for streams in run.streams:
            own = RankRows(share, ranks, streams, run.context)
            check_sums(own, ranks)
            kernel, nccl = time_step(clock, own, ranks, run.rounds)
            if rank == 0:
                sample, least = alone[streams]
                rows.append(_cells(name, streams, sample, kernel, nccl, least / run.ranks / ceilings.read))
                print(" | ".join(rows[-1]), flush=True)
                page.put("Steps", table(_HEAD, rows))
            both = time_sum(clock, ranks, streams, share.shape.dim, run.rounds)
            sums.append([f"{many(streams)}, {share.shape.dim} numbers", *(f"{1e6 * one:.2f}" for one in both)])
            page.put("Sums", table(_SUM_HEAD, sums))
        del share
    if rank == 0:
        print(f"\n{page}\n", flush=True)
    ranks.close()


def _alone(rank: int, run: Run, name: str, clock: Clock, dtype: torch.dtype) -> dict[int, tuple[Sample, float]]:
    """Time steps on one card, and count what they read."""
    if rank > 0:
        return {}
    subject = make_subject(SHAPES[name], clock.device, dtype, tiny=run.tiny)
    found = {}
    for streams in run.streams:
        rows = Rows(subject, streams, run.context)
        step = rows.plain if subject.fused is None else rows.fused  # a CPU has no fused steps
        sample = clock.measure(step, rounds=run.rounds, graphed=True)
        found[streams] = sample, subject.bytes_of(streams, run.context)
    return found


def _cells(name: str, streams: int, alone: Sample, kernel: Sample, nccl: Sample, floor: float) -> list[str]:
    gain, aim, wanted = alone.median / kernel.median, _AIMS.get((name, streams)), _GAINS.get((name, streams))
    reached = None if aim is None else kernel.median <= aim
    reached = reached if wanted is None else gain >= wanted
    return [
        f"{name}, {many(streams)}",
        _ms(alone.median),
        _ms(kernel.median),
        f"{_ms(kernel.low)} to {_ms(kernel.high)} ({len(kernel.values)})",
        f"{gain:.2f}x",
        "" if aim is None and wanted is None else f"{wanted}x" if wanted is not None else _ms(aim or 0.0),
        {None: "", True: "reached", False: "MISSED"}[reached],
        _ms(nccl.median),
        f"{alone.median / nccl.median:.2f}x",
        _ms(floor),
    ]


def _sizes(shape: Shape, *, tiny: bool) -> Mapping[str, int]:
    """Return the sizes that ranks divide; none where they cannot."""
    raw = shape.tiny if tiny else shape.raw
    if shape.family == "moondream":
        return moondream.rank_sizes(MoondreamConfig.from_dict(raw))
    config = QwenConfig.from_dict(raw)
    return qwen.rank_sizes(qwen.QwenFiles(config, ImageSettings.from_dict(_IMAGES, config.vision), None))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ranks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shape", nargs="+", choices=IN_PARTS, default=["moondream2", "qwen3-vl-8b"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=1000, help="positions of each sequence")
    parser.add_argument("--rounds", type=int, default=50, help="steps that are timed")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with tiny shapes; figures mean nothing")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    if options.ranks < 2:
        parser.error(f"--ranks is {options.ranks}: it must be at least 2")
    for name in options.shape:
        try:
            check_ranks(options.ranks, _sizes(SHAPES[name], tiny=options.tiny), ["Moondream 2", "Qwen-VL"])
        except SettingsError as error:
            parser.error(f"{name}: {error}")
    device = resolve_device(options.device)
    if device.type == "cuda" and torch.cuda.device_count() < options.ranks:
        parser.error(f"--ranks is {options.ranks}, but this machine has {torch.cuda.device_count()} CUDA devices")
    with tempfile.NamedTemporaryFile() as meeting:
        run = Run(
            device.type, options.ranks, tuple(options.shape), tuple(options.streams), options.context, options.rounds,
            options.tiny, options.output, meeting.name,
        )  # fmt: skip
        return _run_all(run)


def _run_all(run: Run) -> int:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=take_part, args=(rank, run), daemon=True) for rank in range(run.ranks)]
    for process in processes:
        process.start()
    return await_all(processes)


def await_all(processes: Sequence[BaseProcess]) -> int:
    """Wait until all have ended; kill the others where one fails, which they would wait for."""
    running = list(processes)
    while running:
        ready = wait([process.sentinel for process in running])
        ended = [process for process in running if process.sentinel in ready]
        running = [process for process in running if process not in ended]
        for process in ended:
            process.join()
        if any(process.exitcode for process in ended):
            for process in running:
                process.kill()
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main())

"""Which division of the work makes a decode step fastest: `python -m bench.steps.tune --shape qwen3-vl-2b`.

One kind of kernel at a time is divided in other ways while all others stay as they are; what counts is the whole step,
because kernels overlap. Prints the step's time with each candidate beside that of the rule in force. For weights in 8
and 4 bits: `--shape moondream2 --weights fp8 --context 850`.
"""

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, get_args
from unittest import mock

import torch
from torch import Tensor

from bench.bubble.report import table
from bench.gpu.clock import Clock
from bench.shapes import IN_PARTS, SHAPES
from bench.steps.subjects import Rows, Subject, make_subject
from photonlite.config import Precision
from photonlite.device.names import resolve_device
from photonlite.kernels import decode_attention, experts, tilings
from photonlite.kernels.decode_attention import AttentionConfig
from photonlite.kernels.experts import GroupTiling
from photonlite.kernels.tilings import Tiling
from photonlite.models.moondream.model import MoondreamModel

_PARTS = ("qkv", "proj", "gate, up", "down", "in", "out", "head", "attention")
_GROUPED = {"experts in": "tiling_in", "experts out": "tiling_out"}


def _single(*sizes: tuple[int, int, int]) -> list[Tiling]:
    """Return tilings of one row, given rows and columns of weights and warps."""
    return [Tiling(outs, ins, 1, warps, 0) for outs, ins, warps in sizes]


SINGLE = _single(
    (2, 1024, 2),
    (2, 2048, 2),
    (4, 512, 2),
    (4, 1024, 2),
    (4, 1024, 4),
    (4, 2048, 4),
    (8, 1024, 4),
    (8, 2048, 8),
    (16, 512, 4),
)
SEVERAL = [
    *(Tiling(64, 256, parts, 4, 3) for parts in (1, 2, 4)),
    *(Tiling(64, 128, parts, 4, 5, 2) for parts in (1, 2, 4)),
    *(Tiling(32, 256, parts, 4, 4, 2) for parts in (1, 2)),
    Tiling(32, 128, 1, 4, 5, 3),
    *(Tiling(128, 128, parts, 8, 4) for parts in (1, 2)),
]
SINGLE_8 = _single(
    (4, 1024, 2),
    (4, 1024, 4),
    (4, 2048, 4),
    (4, 2048, 8),
    (8, 512, 1),
    (8, 512, 2),
    (8, 1024, 2),
    (8, 1024, 4),
    (8, 2048, 4),
    (16, 1024, 4),
    (16, 2048, 4),
    (16, 2048, 8),
)
SINGLE_4 = _single(
    (4, 1024, 2),
    (4, 2048, 1),
    (4, 2048, 2),
    (4, 2048, 4),
    (8, 512, 1),
    (8, 512, 2),
    (8, 1024, 2),
    (8, 1024, 4),
    (8, 2048, 2),
    (8, 2048, 4),
    (16, 1024, 4),
    (16, 2048, 4),
)
SEVERAL_8 = [
    *(Tiling(32, 256, parts, 2, 4, 4) for parts in (1, 2, 4)),
    *(Tiling(32, 128, parts, 2, 6, 5) for parts in (1, 2, 4)),
    *(Tiling(64, 256, parts, 4, 4, 2) for parts in (1, 2, 4)),
    *(Tiling(64, 256, parts, 2, 4, 2) for parts in (1, 4)),
    *(Tiling(64, 128, parts, 4, 6, 3) for parts in (1, 2, 4)),
    *(Tiling(128, 128, parts, 8, 5, 2) for parts in (1, 4)),
    Tiling(128, 256, 1, 8, 4),
    Tiling(16, 512, 1, 1, 3, 6),
]
SEVERAL_4 = [
    *(Tiling(32, 128, parts, warps, 6, 4) for parts in (1, 2, 4) for warps in (2, 4)),
    *(Tiling(64, 128, parts, warps, 6, 3) for parts in (1, 2, 4) for warps in (2, 4)),
    *(Tiling(128, 128, parts, 8, 5, 2) for parts in (1, 4)),
    Tiling(16, 128, 1, 1, 8, 8),
]
ATTENTION_FEW = [
    *(AttentionConfig(16, parts, 1, 5, ahead, dot=True) for parts in (12, 16, 24, 32, 40) for ahead in (0, 64)),
    AttentionConfig(64, 16, 4, 4, 64, dot=True),
]
ATTENTION = [
    *(AttentionConfig(16, parts, 1, stages, dot=True) for parts in (4, 6, 8, 10, 12, 16) for stages in (4, 5)),
    *(AttentionConfig(32, parts, 2, 3, dot=True) for parts in (4, 8)),
]
ATTENTION_MANY = [
    *(AttentionConfig(16, parts, 1, stages, dot=True) for parts in (1, 2, 3, 4, 6) for stages in (4, 5, 6)),
    *(AttentionConfig(32, parts, 2, 3, dot=True) for parts in (1, 2, 4)),
]

SINGLE_GROUPS = [GroupTiling(1, outs, step, 4, 1) for outs in (2, 4, 8, 16) for step in (512, 1024)]
GROUPS = [
    GroupTiling(16, outs, step, warps, stages)
    for outs, step, warps, stages in (
        (16, 128, 4, 4),
        (16, 256, 4, 4),
        (32, 64, 4, 6),
        (32, 128, 4, 3),
        (32, 128, 4, 4),
        (32, 128, 4, 6),
        (32, 256, 4, 3),
        (64, 64, 4, 4),
        (64, 64, 4, 6),
        (64, 128, 4, 3),
        (64, 128, 4, 4),
        (64, 128, 8, 4),
        (64, 256, 4, 3),
        (128, 64, 4, 4),
        (128, 64, 8, 4),
        (128, 128, 8, 3),
    )
]


@contextlib.contextmanager
def divided(name: str, outs: int, ins: int, choice: Any) -> Iterator[None]:
    """Divide one kind of kernel as `choice` says; a product is known by the size of its weight."""
    if name in _GROUPED:
        with mock.patch.object(experts, _GROUPED[name], return_value=choice):
            yield
        return
    if name == "attention":
        with mock.patch.object(decode_attention, "attention_config", return_value=choice):
            yield
        return
    usual = tilings.tiling_of

    def tiling(rows: int, n: int, k: int, *, gated: bool = False, group: int = 0) -> Tiling:
        return choice if (n, k) == (outs, ins) else usual(rows, n, k, gated=gated, group=group)

    with mock.patch.object(tilings, "tiling_of", tiling):
        yield


def candidates(subject: Subject, streams: int) -> dict[str, tuple[int, int, Sequence[Any]]]:
    """Return rows and columns of the weight of each kind of kernel, and ways to divide it."""
    if subject.mixture is not None:
        return _mixture_candidates(subject.mixture, streams)
    if subject.parallel is not None:
        return _parallel_candidates(subject.parallel, streams)
    assert subject.text is not None, "a decoder has serial blocks, parallel ones, or experts"
    text = subject.text.config
    width, kv = text.heads * text.head_dim, text.kv_heads * text.head_dim
    products = SINGLE if streams == 1 else SEVERAL
    return {
        "qkv": (width + 2 * kv, text.dim, products),
        "proj": (text.dim, width, products),
        "gate, up": (2 * text.ff_dim, text.dim, products),
        "down": (text.dim, text.ff_dim, products),
        "attention": (0, 0, _attention(streams)),
    }


def _attention(streams: int) -> Sequence[AttentionConfig]:
    return ATTENTION_FEW if streams < 4 else ATTENTION if streams < 16 else ATTENTION_MANY


def _mixture_candidates(model: MoondreamModel, streams: int) -> dict[str, tuple[int, int, Sequence[Any]]]:
    [block, *_] = [block for block in model.packed_blocks if block.experts is not None]
    products, groups = (SINGLE, SINGLE_GROUPS) if streams == 1 else (SEVERAL, GROUPS)
    into, out = block.w_in.shape, block.w_out.shape
    return {
        "experts in": (0, 0, groups),
        "experts out": (0, 0, groups),
        "qkv": (into[0], into[1], products),
        "proj": (out[0], out[1], products),
        "attention": (0, 0, _attention(streams)),
    }


def _parallel_candidates(model: MoondreamModel, streams: int) -> dict[str, tuple[int, int, Sequence[Any]]]:
    block = model.packed_blocks[0]
    products = SINGLE if streams == 1 else SEVERAL
    if not isinstance(block.w_in, Tensor):
        few, many = (SINGLE_4, SEVERAL_4) if block.w_in.precision == "int4" else (SINGLE_8, SEVERAL_8)
        products = few if streams == 1 else many
    found: dict[str, tuple[int, int, Sequence[Any]]] = {
        "in": (*block.w_in.shape, products),
        "out": (*block.w_out.shape, products),
        "head": (model.shape.vocab_size, model.shape.dim, products),
    }
    return found | {"attention": (0, 0, _attention(streams))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.steps.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--shape", choices=IN_PARTS, default="qwen3-vl-2b")
    parser.add_argument("--weights", choices=("auto", *get_args(Precision)), default="auto", help="of Moondream 2")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--only", nargs="+", choices=(*_PARTS, *_GROUPED))
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=170.0, help="begin no candidate after so many seconds")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--workers", type=int, default=0, help="processes that compile all candidates first")
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    begun, clock = time.perf_counter(), Clock(device)
    _compile_all(options, device)
    subject = _subject(options, device)
    found: list[list[str]] = []
    for streams in options.streams:
        rows = Rows(subject, streams, options.context)
        usual = clock.measure(rows.fused, rounds=options.rounds, graphed=True).median
        print(f"{streams} streams: {1e3 * usual:.3f} ms", flush=True)
        times: dict[str, list[tuple[float, Any]]] = {}
        for name, outs, ins, choice in _candidates(options, subject, streams):
            if time.perf_counter() - begun > options.seconds:
                break
            try:
                with divided(name, outs, ins, choice):
                    seconds = clock.measure(rows.fused, rounds=options.rounds, graphed=True).median
            except Exception as error:  # a candidate that does not fit the card
                print(f"  {name}: {choice}: {type(error).__name__}: {error!s:.200}", flush=True)
                continue
            times.setdefault(name, []).append((seconds, choice))
            print(f"  {name}: {1e3 * seconds:.3f} ms with {choice}", flush=True)
        for name, measured in times.items():
            for seconds, choice in sorted(measured, key=lambda one: one[0])[:3]:
                gain = 1e6 * (usual - seconds)
                found.append([str(streams), name, f"{1e3 * seconds:.3f}", f"{gain:.1f}", str(choice)])
    head = ["streams", "kernel", "step (ms)", "gain (us)", "divided as"]
    print(f"\n{options.shape}, weights {options.weights}\n\n{table(head, found)}\n", flush=True)
    return 0


def _subject(options: argparse.Namespace, device: torch.device) -> Subject:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return make_subject(SHAPES[options.shape], device, dtype, tiny=options.tiny, weights=options.weights)


def _candidates(options: argparse.Namespace, subject: Subject, streams: int) -> list[tuple[str, int, int, Any]]:
    """Return each kernel that is asked for, rows and columns of its weight, and one way to divide it."""
    return [
        (name, outs, ins, choice)
        for name, (outs, ins, choices) in candidates(subject, streams).items()
        for choice in choices
        if not options.only or name in options.only
    ]


def _compile_all(options: argparse.Namespace, device: torch.device) -> None:
    """Compile candidates in processes of their own, each some of them: Triton keeps what it compiles on disk."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_compile, args=(options, device, i)) for i in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@torch.inference_mode()
def _compile(options: argparse.Namespace, device: torch.device, index: int) -> None:
    subject = _subject(options, device)
    for streams in options.streams:
        rows = Rows(subject, streams, options.context)
        for name, outs, ins, choice in _candidates(options, subject, streams)[index :: options.workers]:
            # One that does not fit is reported where it is measured.
            with contextlib.suppress(Exception), divided(name, outs, ins, choice):
                rows.fused()


if __name__ == "__main__":
    sys.exit(main())

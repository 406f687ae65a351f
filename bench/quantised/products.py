"""Products of one row and of prompts on the CPU: the kernel of each precision, and its matrix turned back."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bench.bubble.report import table
from photonlite.config import Precision
from photonlite.kernels.host_products import Stored, kernel
from photonlite.kernels.reference.quantised import quantise

SHAPES = ((6144, 2048), (2048, 8192))
ROWS = (1, 100, 300, 740)
PRECISIONS: tuple[Precision, ...] = ("int8", "int4")


@torch.inference_mode()
def time_products(rounds: int, shapes: Sequence[tuple[int, int]] = SHAPES, rows: Sequence[int] = ROWS) -> str:
    """Write processor times, medians of rounds in which all ways take turns, and ratios in the same run."""
    found = [_times(shape, count, rounds) for shape in shapes for count in rows]
    head = ["matrix", "rows", "float32 (ms)"]
    for precision in PRECISIONS:
        head += [f"{precision} (ms)", "against float32", "against the matrix turned back"]
    return table(head, found)


def _times(shape: tuple[int, int], count: int, rounds: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(shape, generator=generator), torch.randn(count, shape[1], generator=generator)
    ways: list[Callable[[Tensor], Tensor]] = [lambda x: functional.linear(x, matrix)]
    for precision in PRECISIONS:
        weight, pack = quantise(matrix, precision), kernel(precision)
        ways += [((pack and pack(weight)) or Stored(weight)).multiply, Stored(weight).multiply]
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds + 1):
        for way, own in zip(ways, times, strict=True):
            begun = time.process_time()
            way(x)
            own.append(1e3 * (time.process_time() - begun))
    full, *others = (statistics.median(own[1:]) for own in times)
    cells = [f"{shape[0]} x {shape[1]}", str(count), f"{full:.2f}"]
    for one, back in zip(others[::2], others[1::2], strict=True):
        cells += [f"{one:.2f}", f"{one / full:.2f}", f"{one / back:.2f}"]
    return cells

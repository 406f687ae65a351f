"""What the device can do at best, measured in the run whose figures are held against it.

Read bandwidth comes from reductions, which write next to nothing: a copy mixes reads and writes, and can be slower or
faster. Products are those of the model's own shapes, each timed alone; operands rotate, so that weights come from
memory as they do between a model's layers.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.bubble.report import table
from bench.gpu.clock import Clock

_ROTATED = 6
"""Sets of operands used in rotation: operands of the smallest shapes may stay in the L2 cache, as in the model."""

_FP8_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product ``[rows, inner] x [outer, inner].T``, `count` times a pass.

    Attributes:
        rows: Of the activations.
        inner: What is summed over.
        outer: Output channels.
        count: How often it runs.
    """

    rows: int
    inner: int
    outer: int
    count: int = 1

    @property
    def operations(self) -> float:
        """Multiplications and additions, all `count` of them."""
        return 2.0 * self.rows * self.inner * self.outer * self.count


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention without a mask over ``[batch, heads, length, size]``, `count` times a pass."""

    batch: int
    heads: int
    length: int
    size: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one device can do.

    Attributes:
        read: Bytes per second of the fastest reduction.
        reader: Which one that was.
        copy: Bytes per second of a copy on the device, read and written bytes together.
        matmul: Operations per second of the large square product.
        side: Of that product's matrices.
        dtype: Of that product.
    """

    read: float
    reader: str
    copy: float
    matmul: float
    side: int
    dtype: torch.dtype

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        rows = [
            [f"read, fastest of some reductions ({self.reader})", f"{self.read / 1e12:.2f} TB/s"],
            ["copy on the device, bytes read and written", f"{self.copy / 1e12:.2f} TB/s"],
            [f"product of two matrices of {self.side} x {self.side}, {kind}", f"{self.matmul / 1e12:.0f} TFLOP/s"],
        ]
        return table(["ceiling", "measured"], rows)


def measure_ceilings(clock: Clock, dtype: torch.dtype, *, size: int, side: int) -> Ceilings:
    """Measure bandwidths and the rate of a large product.

    Args:
        clock: Of the device.
        dtype: Of the product.
        size: Bytes that are read; far more than the caches hold.
        side: Of the product's matrices.
    """
    with torch.inference_mode():
        read, reader = _read_bandwidth(clock, size)
        copy = _copy_bandwidth(clock, size)
        left, right = (torch.randn(side, side, device=clock.device).to(dtype) for _ in range(2))
        product = clock.measure(lambda: left @ right)
    return Ceilings(read, reader, copy, 2.0 * side**3 / product.median, side, dtype)


def products_seconds(clock: Clock, products: Iterable[Product], dtype: torch.dtype, *, fp8: bool = False) -> float:
    """Time products, each shape alone, and add up what a pass over all of them takes.

    A product is timed with its own rows and with the next multiple of 16, and the quicker of both counts.

    Args:
        clock: Of the device.
        products: The shapes.
        dtype: Of operands and results.
        fp8: Whether operands are e4m3, with a scale for each row; shapes that FP8 cannot have stay in `dtype`.
    """
    with torch.inference_mode():
        return sum(
            min(_seconds(clock, replace(one, rows=rows), dtype, fp8) for rows in {one.rows, -(-one.rows // 16) * 16})
            for one in products
        )


def attention_seconds(clock: Clock, shape: Heads, dtype: torch.dtype) -> tuple[float, str]:
    """Time scaled dot-product attention with each backend, at its own head size and padded to the next multiple of 16.

    Returns:
        Seconds of all `count` calls with the fastest, and its name.

    Raises:
        RuntimeError: No backend runs this shape.
    """
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    found: list[tuple[float, str]] = []
    sizes = sorted({shape.size, -(-shape.size // 16) * 16})
    for backend, size in itertools.product(backends if clock.device.type == "cuda" else [SDPBackend.MATH], sizes):
        try:
            found.append(
                (_attend(clock, shape, size, backend, dtype) * shape.count, f"{backend.name}, heads of {size}")
            )
        except RuntimeError:  # this backend does not run this shape, type or device
            continue
    if not found:
        raise RuntimeError(f"no backend attends to {shape}")
    return min(found)


def _read_bandwidth(clock: Clock, size: int) -> tuple[float, str]:
    """Return the bytes per second of the fastest of some reductions, and its name."""
    floats = torch.ones(size // 4, dtype=torch.float32, device=clock.device)
    rows = floats.view(-1, 4096)
    ways: dict[str, Callable[[], Tensor]] = {
        "float32 sum": floats.sum,
        "float32 amax": floats.amax,
        "float32 amax of rows": lambda: rows.amax(dim=1),
        "bfloat16 amax of rows": lambda: rows.view(torch.bfloat16).amax(dim=1),
        "float32 sum of rows": lambda: rows.sum(dim=1),
    }
    return max((size / clock.measure(way).low, name) for name, way in ways.items())


def _copy_bandwidth(clock: Clock, size: int) -> float:
    """Return the bytes per second, reads and writes together, of a copy."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    return size / clock.measure(lambda: target.copy_(source)).low


def _seconds(clock: Clock, one: Product, dtype: torch.dtype, fp8: bool) -> float:
    fits = one.inner % 16 == 0 and one.outer % 16 == 0
    make = _fp8_product if fp8 and fits else _product
    calls = [make(one, device=clock.device, dtype=dtype) for _ in range(min(one.count, _ROTATED))]
    return clock.measure(partial(_run, calls), graphed=True).median / len(calls) * one.count


def _product(one: Product, *, device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    x = torch.randn(one.rows, one.inner, device=device).to(dtype)
    weight = (torch.randn(one.outer, one.inner, device=device) / math.sqrt(one.inner)).to(dtype)
    return partial(functional.linear, x, weight)


def _fp8_product(one: Product, *, device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    x, weight = (
        torch.randn(rows, one.inner, device=device).clamp(-_FP8_LARGEST, _FP8_LARGEST).to(torch.float8_e4m3fn)
        for rows in (one.rows, one.outer)
    )
    x_scale, w_scale = torch.ones(one.rows, 1, device=device), torch.ones(1, one.outer, device=device)
    return partial(
        torch._scaled_mm, x, weight.t(), x_scale, w_scale, out_dtype=dtype, use_fast_accum=device.type == "cuda"
    )


def _attend(clock: Clock, shape: Heads, size: int, backend: SDPBackend, dtype: torch.dtype) -> float:
    q, k, v = (
        torch.randn(shape.batch, shape.heads, shape.length, size, device=clock.device).to(dtype) for _ in range(3)
    )
    with sdpa_kernel(backend), torch.inference_mode():
        scale = 1 / math.sqrt(shape.size)
        call = partial(functional.scaled_dot_product_attention, q, k, v, scale=scale)
        return clock.measure(partial(_run, [call] * _ROTATED), graphed=True).median / _ROTATED


def _run(calls: Sequence[Callable[[], Tensor]]) -> None:
    for call in calls:
        call()

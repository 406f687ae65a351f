"""Products of a few rows with quantised weights on the CPU: PyTorch's own kernels, used where they measure faster.

Kernels that read int8 or int4 directly multiply a few rows. For more rows the matrix is dequantised to the rows' type,
part by part, which is faster from some number of rows on: `measure` finds that number on the machine.

| weights | kernel | rows | memory |
|---|---|---|---|
| int8 | FBGEMM's, of 7 and 8 bits | two numbers of 7 bits for each of theirs | two bytes a weight |
| int8 | `_weight_int8pack_mm` | rounded to bfloat16, results too | one byte |
| int4 | `_weight_int4pack_mm_for_cpu` | rounded to bfloat16, results too | half a byte |
"""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.config import Precision
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise, unpack_codes

_logger = logging.getLogger("photonlite")

PART = 2**24  # numbers of a matrix that exist in full precision at a time
_ALIGNED = 64  # its rows are a multiple of this
_READ = 16  # columns that PyTorch's kernel of int8 reads at a time, from memory behind a row that has fewer left
_BLOCKS = (32, 64, 16)  # rows that PyTorch's layout of int4 interleaves, which depends on the processor
_GROUPS = (32, 64, 128, 256)  # columns of a group that its kernel takes
_SHAPE = (2048, 2048)  # of the matrix that is measured
_ROWS = (1, 4, 16, 64)
_SECONDS = 0.02  # of a measurement, with two runs at least: others may disturb most of them
_MISSING = (RuntimeError, AttributeError, NotImplementedError)  # raised by builds of PyTorch without a kernel
_STEPS = 127.0  # of 7 bits: AVX2 adds two products of 7 and 8 bits in 16 bits
_ERROR = 0.005  # of a product at most: rounding to bfloat16 makes 0.003, rows of 7 bits alone 0.015


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix as it is stored, without a kernel for a few rows."""

    weight: QuantisedWeight

    def rows(self, part: slice, dtype: torch.dtype) -> Tensor:
        """Return rows of the matrix, from a multiple of `_ALIGNED` to another one or to the end."""
        return dequantise(self.weight[part], dtype)


@dataclass(frozen=True, slots=True)
class PlainInt8(Stored):
    """An int8 matrix as it is stored, for PyTorch's kernel of bfloat16 rows."""

    def multiply(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in any type."""
        return torch._weight_int8pack_mm(x.to(torch.bfloat16), self.weight.values, self.weight.scale[:, 0])


@dataclass(frozen=True, slots=True)
class SplitInt8(Stored):
    """An int8 matrix, and once more in FBGEMM's layout, which is too slow to turn back.

    A row from `low` to ``low + 127 step`` is ``low + step (c + (f - 63.5) / 127)`` with c and f from 0 to 127, which go
    through the kernel as rows of their own. It scales all of them by the same number, which is 1 because c has both
    ends of the range: so sums are exact, and no row depends on the others. The step grows with the range: beside a
    number 1,000 times larger than the others these lose some 2 %.
    """

    packed: Any
    sums: Tensor  # of the rows of the matrix, float32 [N]

    def multiply(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in float32."""
        wide = x.float()
        low, high = wide.aminmax(dim=1, keepdim=True)
        step = ((high - low) / _STEPS).clamp_min(torch.finfo(torch.float32).tiny)
        steps = (wide - low) / step
        coarse = steps.round()
        fine = (steps - coarse).mul_(_STEPS).add_(_STEPS / 2).round_()
        # A NaN stays in the step of its row, and must not become the scale of all.
        split = torch.cat((coarse, fine)).nan_to_num_(0.0, 0.0, 0.0)
        products: Tensor = torch.ops.quantized.linear_dynamic(split, self.packed, reduce_range=True)
        coarse, fine = products.chunk(2)
        return (coarse + fine / _STEPS).mul_(step).addcmul_(low - step / 2, self.sums)


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """An int4 matrix in PyTorch's own layout; `block` is the rows that it interleaves."""

    values: Tensor  # uint8 [N, K / 2]
    scales: Tensor  # bfloat16 [G, N, 2]: scale and shift
    block: int

    @property
    def group(self) -> int:
        return 2 * self.values.shape[1] // len(self.scales)

    def multiply(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in bfloat16."""
        rows = x.to(torch.bfloat16)
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.values, self.group, self.scales)
        return product

    def rows(self, part: slice, dtype: torch.dtype) -> Tensor:
        """Return rows of the matrix, from a multiple of the block to another one or to the end."""
        codes = unpack_blocks(self.values[part], self.block)
        step, shift = (one.t()[part, :, None] for one in self.scales.float().unbind(2))
        return codes.view(len(codes), len(self.scales), -1).float().sub_(8).mul_(step).add_(shift).flatten(1).to(dtype)


def plain_int8(weight: QuantisedWeight) -> PlainInt8 | None:
    """Take a matrix as it is; None where the kernel would read behind its end, where memory may end as well."""
    return PlainInt8(weight) if weight.shape[1] % _READ == 0 else None


def split_int8(weight: QuantisedWeight) -> SplitInt8 | None:
    """Pack a matrix for FBGEMM; None where this build of PyTorch lacks it."""
    scale, zeros = weight.scale[:, 0].double(), torch.zeros(len(weight), dtype=torch.long)
    try:
        with warnings.catch_warnings():  # PyTorch announces that quantised tensors will go
            warnings.simplefilter("ignore")
            tensor = torch._make_per_channel_quantized_tensor(weight.values, scale, zeros, 0)
            packed = torch.ops.quantized.linear_prepack(tensor, None)
    except _MISSING:
        return None
    return SplitInt8(weight, packed, weight.values.sum(dim=1) * weight.scale[:, 0].float())


def pack_int4(weight: QuantisedWeight) -> PackedInt4 | None:
    """Convert a matrix to PyTorch's layout; None where its kernel does not take it or the layout is an unknown one."""
    block = int4_block()
    if weight.shift is None or block is None or weight.group not in _GROUPS or len(weight) % block:
        return None
    codes = unpack_codes(weight.values, weight.scale.shape[1]).flatten(1)
    scales = torch.stack((weight.scale.t(), weight.shift.t()), dim=2).contiguous()
    return PackedInt4(_pack(codes), scales, block)


def int4_block() -> int | None:
    """Return the rows that PyTorch's layout interleaves on this processor; None where it is another layout."""
    codes = torch.randint(16, (128, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    try:
        packed = _pack(codes)
    except _MISSING:
        return None
    return next((block for block in _BLOCKS if torch.equal(unpack_blocks(packed, block), codes)), None)


def unpack_blocks(values: Tensor, block: int) -> Tensor:
    """Return codes, uint8 ``[N, K]``, from PyTorch's layout: of each block of rows column after column."""
    rows, columns = len(values), 2 * values.shape[1]
    packed = values.reshape(rows // block, columns, block // 2)
    return torch.cat((packed & 15, packed >> 4), dim=2).transpose(1, 2).reshape(rows, columns)


def _pack(codes: Tensor) -> Tensor:
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    return packed


Packed = SplitInt8 | PlainInt8 | PackedInt4
Pack = Callable[[QuantisedWeight], Packed | None]
_PACKS: dict[Precision, tuple[Pack, ...]] = {"int8": (split_int8, plain_int8), "int4": (pack_int4,), "fp8": ()}


@dataclass(frozen=True, slots=True)
class Choice:
    """How a few rows are multiplied: with the matrix in a form that has a kernel, and up to how many rows."""

    pack: Pack | None = None
    few: int = 0


class HostProduct:
    """A linear layer without a bias on the CPU.

    Args:
        weight: The matrix, which is converted where its kernel wants another layout.
        choice: How a few rows are multiplied; see :func:`measure`.
    """

    def __init__(self, weight: QuantisedWeight, choice: Choice) -> None:
        packed = choice.pack(weight) if choice.pack is not None else None
        self._few = 0 if packed is None else choice.few
        self._packed, self._form = packed, packed or Stored(weight)
        self.shape = weight.shape

    @property
    def takes_few(self) -> bool:
        """Whether a kernel takes the matrix."""
        return self._packed is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in the type of x."""
        if self._packed is not None and len(x) <= self._few:
            return self._packed.multiply(x).to(x.dtype)
        out = x.new_empty(len(x), self.shape[0])
        for part in self._parts():
            out[:, part] = functional.linear(x, self._form.rows(part, x.dtype))
        return out

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix ``[N, K]``."""
        return torch.cat([self._form.rows(part, dtype) for part in self._parts()])

    def _parts(self) -> list[slice]:
        rows, columns = self.shape
        step = max(1, PART // columns // _ALIGNED) * _ALIGNED
        return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


@functools.cache
def measure(precision: Precision, dtype: torch.dtype) -> Choice:
    """Return how a few rows of a type are multiplied most quickly here, by the time of a single one."""
    weight = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0))
    stored, best, least = quantise(weight, precision), Choice(), float("inf")
    parts = HostProduct(stored, best)
    for pack in _PACKS[precision]:
        packed = HostProduct(stored, Choice(pack, _ROWS[-1]))
        if not packed.takes_few or _error(packed, parts, weight[:4]) > _ERROR:
            continue
        few, single = _limit(packed, parts, weight.to(dtype))
        if few and single < least:
            best, least = Choice(pack, few), single
    name = "no packed kernel" if best.pack is None else f"{best.pack.__name__} up to {best.few} rows"
    _logger.info("Products with %s weights: %s", precision, name)
    return best


def _error(packed: HostProduct, parts: HostProduct, x: Tensor) -> float:
    """Return how far products are from those with the matrix, which other processors may compute otherwise."""
    wanted = parts(x)
    return float((packed(x) - wanted).norm() / wanted.norm())


def _limit(packed: HostProduct, parts: HostProduct, x: Tensor) -> tuple[int, float]:
    """Return up to how many rows a product is the quicker one, and its time with a single row."""
    few, single = 0, 0.0
    for rows in _ROWS:
        times = [_shortest(partial(product, x[:rows])) for product in (packed, parts)]
        if times[0] > times[1]:
            break
        few, single = rows, single or times[0]
    return few, single


def _shortest(run: Callable[[], object]) -> float:
    """Return the least time of some runs, behind one that is not counted."""
    run()
    times: list[float] = []
    while len(times) < 2 or sum(times) < _SECONDS:
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)

"""Products with quantised weights on the CPU, by PyTorch's own kernels.

One kernel multiplies all rows, however many there are, and computes each as if it were alone: an answer does not depend
on what is computed together with it. A precision or matrix without a kernel is dequantised to the rows' type, part by
part.

| weights | kernel | rows | memory |
|---|---|---|---|
| int8 | FBGEMM's, of 7 and 8 bits | two numbers of 7 bits for each of theirs | one byte a weight |
| int8 | `_weight_int8pack_mm`, in builds without FBGEMM | rounded to bfloat16, results too | one byte |
| int4 | `_weight_int4pack_mm_for_cpu` | rounded to bfloat16, results too | half a byte |
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.config import Precision
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise, unpack_codes

PART = 2**24  # numbers of a matrix that exist in full precision at a time
_ALIGNED = 64  # its rows are a multiple of this
_ROWS = 256  # that exist in 7 bits at a time
_READ = 16  # columns that PyTorch's kernel of int8 reads at a time, from memory behind a row that has fewer left
_BLOCKS = (32, 64, 16)  # rows that PyTorch's layout of int4 interleaves, which depends on the processor
_GROUPS = (32, 64, 128, 256)  # columns of a group that its kernel takes
_MISSING = (RuntimeError, AttributeError, NotImplementedError)  # raised by builds of PyTorch without a kernel
_STEPS = 127.0  # of 7 bits: AVX2 adds two products of 7 and 8 bits in 16 bits
_ERROR = 0.005  # of a product at most: rounding to bfloat16 makes 0.003, rows of 7 bits alone 0.015


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix as it is stored, for products in the rows' own type."""

    weight: QuantisedWeight

    def multiply(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]``."""
        rows, columns = self.weight.shape
        out = x.new_empty(len(x), rows)
        step = max(1, PART // columns // _ALIGNED) * _ALIGNED
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            out[:, part] = functional.linear(x, dequantise(self.weight[part], x.dtype))
        return out

    def matrix(self, dtype: torch.dtype) -> Tensor:
        return dequantise(self.weight, dtype)


@dataclass(frozen=True, slots=True)
class PlainInt8(Stored):
    """An int8 matrix as it is stored, for PyTorch's kernel of bfloat16 rows."""

    def multiply(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in any type."""
        return torch._weight_int8pack_mm(x.to(torch.bfloat16), self.weight.values, self.weight.scale[:, 0])


@dataclass(frozen=True, slots=True)
class SplitInt8:
    """An int8 matrix in FBGEMM's layout.

    A row from `low` to ``low + 127 step`` is ``low + step (c + (f - 63.5) / 127)`` with c and f from 0 to 127, which go
    through the kernel as rows of their own. It scales all of them by the same number, which is 1 because c has both
    ends of the range: so sums are exact, and no row depends on the others. The step grows with the range: beside a
    number 1,000 times larger than the others these lose some 2 %.
    """

    packed: Any
    scale: Tensor  # [N, 1]
    sums: Tensor  # of the rows of the matrix, float32 [N]

    def multiply(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in float32."""
        return torch.cat([self._multiply(rows.float()) for rows in torch.split(x, _ROWS)])

    def _multiply(self, wide: Tensor) -> Tensor:
        low, high = wide.aminmax(dim=1, keepdim=True)
        step = ((high - low) / _STEPS).clamp_min(torch.finfo(torch.float32).tiny)
        steps, split = (wide - low).div_(step), wide.new_empty(2, *wide.shape)
        coarse = torch.round(steps, out=split[0])
        torch.sub(steps, coarse, out=split[1]).mul_(_STEPS).add_(_STEPS / 2).round_()
        # A NaN stays in the step of its row, and must not become the scale of all.
        split = split.nan_to_num_(0.0, 0.0, 0.0).flatten(0, 1)
        products: Tensor = torch.ops.quantized.linear_dynamic(split, self.packed, reduce_range=True)
        coarse, fine = products.chunk(2)
        return coarse.add_(fine, alpha=1 / _STEPS).mul_(step).addcmul_(low - step / 2, self.sums)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        values = torch.ops.quantized.linear_unpack(self.packed)[0].int_repr()
        return dequantise(QuantisedWeight(values, self.scale), dtype)


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

    def matrix(self, dtype: torch.dtype) -> Tensor:
        codes = unpack_blocks(self.values, self.block)
        step, shift = (one.t()[:, :, None] for one in self.scales.float().unbind(2))
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
    return SplitInt8(packed, weight.scale, weight.values.sum(dim=1) * weight.scale[:, 0].float())


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


HostProduct = Stored | SplitInt8 | PackedInt4
Pack = Callable[[QuantisedWeight], HostProduct | None]
_PACKS: dict[Precision, tuple[Pack, ...]] = {"int8": (split_int8, plain_int8), "int4": (pack_int4,), "fp8": ()}


@functools.cache
def kernel(precision: Precision) -> Pack | None:
    """Return the first kernel of a precision that this build of PyTorch has and that errs little on this processor."""
    weight = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    stored = quantise(weight, precision)
    wanted = Stored(stored).multiply(weight)
    for pack in _PACKS[precision]:
        packed = pack(stored)
        if packed is not None and (packed.multiply(weight) - wanted).norm() <= _ERROR * wanted.norm():
            return pack
    return None

"""Products of a few rows with quantised weights on the CPU: PyTorch's own kernels, used where they measure faster.

A few rows are multiplied by the kernels that read int8 or int4 directly; their inputs and results are bfloat16. More
rows are multiplied with the matrix turned back into numbers of the rows' type, part by part: that is quicker from some
number of rows on, which `measure` finds on the machine.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.config import Precision
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise, unpack_codes

_logger = logging.getLogger("photonlite")

PART = 2**24  # numbers of a matrix that exist in full precision at a time
_ALIGNED = 64  # its rows are a multiple of this
_BLOCKS = (32, 64, 16)  # rows that PyTorch's layout of int4 interleaves, which depends on the processor
_GROUPS = (32, 64, 128, 256)  # columns of a group that its kernel takes
_SHAPE = (2048, 2048)  # of the matrix that is measured
_ROWS = (1, 4, 16, 64)
_ROUNDS = 3


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
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.values, self.group, self.scales)
        return product

    def rows(self, part: slice, dtype: torch.dtype) -> Tensor:
        """Return rows of the matrix, from a multiple of the block to another one or to the end."""
        codes = unpack_blocks(self.values[part], self.block)
        step, shift = (one.t()[part, :, None] for one in self.scales.float().unbind(2))
        return codes.view(len(codes), len(self.scales), -1).float().sub_(8).mul_(step).add_(shift).flatten(1).to(dtype)


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
    except (RuntimeError, AttributeError, NotImplementedError):  # a build of PyTorch without it
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


class HostProduct:
    """A linear layer without a bias on the CPU.

    Args:
        weight: The matrix, which is converted where its kernel wants another layout.
        few: Rows up to which the packed kernel multiplies; see :func:`measure`.
    """

    def __init__(self, weight: QuantisedWeight, few: int) -> None:
        packed = pack_int4(weight) if few and weight.precision == "int4" else None
        self.takes_few = weight.precision == "int8" or packed is not None
        self._few = few if self.takes_few else 0
        self._stored = packed or weight
        self.shape = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[M, K]`` to ``[M, N]`` in the type of x."""
        if len(x) > self._few:
            out = x.new_empty(len(x), self.shape[0])
            for first, part in self._parts(x.dtype):
                out[:, first : first + len(part)] = functional.linear(x, part)
            return out
        rows = x.to(torch.bfloat16)
        if isinstance(self._stored, PackedInt4):
            return self._stored.multiply(rows).to(x.dtype)
        return torch._weight_int8pack_mm(rows, self._stored.values, self._stored.scale[:, 0]).to(x.dtype)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix ``[N, K]``."""
        return torch.cat([part for _, part in self._parts(dtype)])

    def _parts(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """Return parts of the matrix, each behind the number of its first row."""
        stored, (rows, columns) = self._stored, self.shape
        step = max(1, PART // columns // _ALIGNED) * _ALIGNED
        for first in range(0, rows, step):
            part = slice(first, first + step)
            if isinstance(stored, PackedInt4):
                yield first, stored.rows(part, dtype)
            else:
                yield first, dequantise(stored[part], dtype)


@functools.cache
def measure(precision: Precision, dtype: torch.dtype) -> int:
    """Return the rows up to which the packed kernel of a precision is quicker here, for rows of a type; 0 for none."""
    weight = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0))
    packed = HostProduct(quantise(weight, precision), _ROWS[-1])
    parts = HostProduct(quantise(weight, precision), 0)
    few = 0
    for rows in _ROWS if packed.takes_few else ():
        x = weight[:rows].to(dtype)
        times = [_shortest(partial(product, x)) for product in (packed, parts)]
        if times[0] > times[1]:
            break
        few = rows
    _logger.info("Products with %s weights: PyTorch's packed kernel up to %d rows", precision, few)
    return few


def _shortest(run: Callable[[], object]) -> float:
    """Return the least time of some runs, behind one that is not counted."""
    run()
    times = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)

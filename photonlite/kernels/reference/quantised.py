"""Weights in 8 and 4 bits in PyTorch: how they are rounded, stored, and turned back into matrices.

| precision | values | group | number |
|---|---|---|---|
| int8 | int8 ``[N, K]`` | a row | ``q * scale`` |
| fp8 | e4m3 ``[N, K]`` | a row | ``q * scale`` |
| int4 | uint8 ``[N, K / 2]`` | 128 columns | ``(q - 8) * scale + shift`` |

A group of columns shares a scale. Rows that 128 does not divide have groups of the largest smaller power of two. Of an
int4 group of g columns byte j holds column j in its low four bits, and column j + g / 2 in the others: a kernel
multiplies both halves without interleaving them. Scales and shifts are bfloat16, and numbers are rounded with the
rounded ones, so that every way to multiply uses the same matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.config import Precision

GROUP, LEAST_GROUP = 128, 16  # columns of an int4 group
_SCALE = torch.bfloat16
_LARGEST = {"int8": 127.0, "fp8": 448.0}
_WIDTHS = (1.0, 0.9)  # of what a group's numbers span, for its 16 steps
_LEAST = 1e-12  # scale of a group of zeros
_TYPES: dict[Precision, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A matrix ``[N, K]`` in the form of the table above, with G groups a row."""

    values: Tensor
    scale: Tensor  # [N, G]
    shift: Tensor | None = None  # [N, G], of int4 alone

    @property
    def precision(self) -> Precision:
        return next(name for name, dtype in _TYPES.items() if dtype == self.values.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns if self.shift is None else 2 * columns

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.shape[1] // self.scale.shape[1]

    @property
    def device(self) -> torch.device:
        return self.values.device

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> QuantisedWeight:
        """Return some rows, as views."""
        return QuantisedWeight(self.values[rows], self.scale[rows], None if self.shift is None else self.shift[rows])


def group_of(columns: int) -> int | None:
    """Return the columns of an int4 group in rows of so many; None where no group divides them."""
    group = GROUP
    while group >= LEAST_GROUP and columns % group:
        group //= 2
    return group if group >= LEAST_GROUP else None


def empty(shape: Sequence[int], precision: Precision, device: torch.device | str) -> QuantisedWeight:
    """Allocate a matrix; ValueError where no int4 group divides its columns."""
    rows, columns = shape
    if precision != "int4":
        values = torch.empty(rows, columns, dtype=_TYPES[precision], device=device)
        return QuantisedWeight(values, torch.empty(rows, 1, dtype=_SCALE, device=device))
    if (group := group_of(columns)) is None:
        raise ValueError(f"int4 needs rows of a multiple of {LEAST_GROUP} numbers, not of {columns}")
    scale, shift = (torch.empty(rows, columns // group, dtype=_SCALE, device=device) for _ in range(2))
    return QuantisedWeight(torch.empty(rows, columns // 2, dtype=torch.uint8, device=device), scale, shift)


def quantise(weight: Tensor, precision: Precision) -> QuantisedWeight:
    """Round ``[N, K]`` to the nearest; ValueError for numbers that are not finite, or as in :func:`empty`."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    if precision == "int4":
        return quantise_groups(wide, _WIDTHS)
    largest = _LARGEST[precision]
    scale = _finite(wide.abs().amax(dim=1, keepdim=True) / largest).clamp_min(_LEAST).to(_SCALE)
    values = (wide / scale.to(wide.dtype)).clamp_(-largest, largest)
    return QuantisedWeight((values.round_() if precision == "int8" else values).to(_TYPES[precision]), scale)


def quantise_groups(wide: Tensor, widths: Sequence[float]) -> QuantisedWeight:
    """Round to int4; of some ranges of numbers, of which that of width 1 cuts none, each group takes the best one."""
    like = empty(wide.shape, "int4", "meta")
    grouped = wide.reshape(len(wide), -1, like.group)  # [N, G, g]
    least, most = grouped.aminmax(dim=2)
    middle, half = (most + least) / 2, (most - least) / 2
    best: list[Tensor] = []  # error, codes, scale, shift
    for width in widths:
        scale = _finite(half * (width / 7.5)).clamp_min(_LEAST).to(_SCALE)
        step = scale.to(wide.dtype)
        shift = (middle + 0.5 * step).to(_SCALE)
        steps = (grouped - shift.to(wide.dtype)[..., None]) / step[..., None]
        codes = steps.round().clamp_(-8, 7)
        found = [(codes - steps).square_().sum(dim=2) * step.square(), codes.add_(8).to(torch.uint8), scale, shift]
        best = _better_groups(best, found)
    return QuantisedWeight(pack_codes(best[1]), best[2], best[3])


def _better_groups(best: list[Tensor], found: list[Tensor]) -> list[Tensor]:
    """Return the better of two roundings of each group: errors, codes, scales and shifts; `best` may be empty."""
    if not best:
        return found
    better = found[0] < best[0]
    masks = (better, better[..., None], better, better)
    return [torch.where(mask, new, old) for mask, new, old in zip(masks, found, best, strict=True)]


def pack_codes(codes: Tensor) -> Tensor:
    """Pack numbers from 0 to 15, uint8 ``[N, G, g]``, as ``[N, K / 2]``."""
    low, high = codes.chunk(2, dim=2)
    return (low | high << 4).flatten(1)


def unpack_codes(values: Tensor, groups: int) -> Tensor:
    """Return uint8 ``[N, G, g]``; see :func:`pack_codes`."""
    packed = values.reshape(len(values), groups, -1)
    return torch.cat((packed & 15, packed >> 4), dim=2)


def dequantise(weight: QuantisedWeight, dtype: torch.dtype) -> Tensor:
    """Return the matrix ``[N, K]``, computed in float32 at least and rounded once."""
    wide = torch.promote_types(dtype, torch.float32)
    scale = weight.scale.to(wide)[..., None]
    if weight.shift is None:
        grouped = weight.values.reshape(len(weight), scale.shape[1], -1).to(wide).mul_(scale)
    else:
        grouped = unpack_codes(weight.values, scale.shape[1]).to(wide).sub_(8).mul_(scale)
        grouped.add_(weight.shift.to(wide)[..., None])
    return grouped.flatten(1).to(dtype)


def join_rows(parts: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """Put matrices of one precision and as many columns below each other."""
    shifts = [part.shift for part in parts if part.shift is not None]
    shift = torch.cat(shifts) if shifts else None
    return QuantisedWeight(torch.cat([p.values for p in parts]), torch.cat([p.scale for p in parts]), shift)


def join_columns(parts: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """Put matrices of one precision beside each other; ValueError where no common group divides them."""
    group = min(part.group for part in parts)
    if parts[0].shift is None:
        common = math.gcd(*(part.group for part in parts))
        group = GROUP if common % GROUP else common
    if any(part.shape[1] % group or part.group % group for part in parts):
        raise ValueError(f"groups of {group} do not divide columns of {[part.shape[1] for part in parts]}")
    values = torch.cat([part.values for part in parts], dim=1)
    scale = torch.cat([_spread(part.scale, part.group // group) for part in parts], dim=1)
    if parts[0].shift is None:
        return QuantisedWeight(values, scale)
    if len({part.group for part in parts}) > 1:
        raise ValueError("int4 matrices with groups of different sizes cannot be joined: their bytes differ")
    return QuantisedWeight(values, scale, torch.cat([p.shift for p in parts if p.shift is not None], dim=1))


def columns_of(weight: QuantisedWeight, first: int, stop: int) -> QuantisedWeight:
    """Return columns of a matrix, as views; both ends are multiples of a group."""
    group, packed = weight.group, 1 if weight.shift is None else 2
    values, groups = weight.values[:, first // packed : stop // packed], slice(first // group, stop // group)
    shift = None if weight.shift is None else weight.shift[:, groups]
    return QuantisedWeight(values, weight.scale[:, groups], shift)


def _spread(scale: Tensor, times: int) -> Tensor:
    return scale.repeat_interleave(times, dim=1)


def _finite(scale: Tensor) -> Tensor:
    if not bool(torch.isfinite(scale).all()):
        raise ValueError("a matrix with numbers that are not finite cannot be quantised")
    return scale

"""Inputs of the kernels of a decode step: products over a few rows, and attention of new positions."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from photonlite.kernels.reference.attention import quantise
from photonlite.models.layers import rotary_table
from tests.kernels.pages import scattered

EPS = 1e-5
LONGEST = 2100
"""Positions that may be rotated."""


@dataclass(frozen=True)
class BlockCase:
    """What goes into a block's two products.

    Attributes:
        x: ``[M, dim]``: the residual stream.
        norm: Weight, bias and eps.
        w_in: ``[A + F, dim]``.
        b_in: ``[A + F]``.
        inside: ``[M, A + F]``: what attention and GELU may have left.
        w_out: ``[dim, A + F]``.
        b_out: ``[dim]``, at least float32.
        attended: A.
    """

    x: Tensor
    norm: tuple[Tensor, Tensor, float]
    w_in: Tensor
    b_in: Tensor
    inside: Tensor
    w_out: Tensor
    b_out: Tensor
    attended: int

    def to(self, dtype: torch.dtype, device: str = "cpu") -> "BlockCase":
        """The same rounded and on a device; `b_out` is rounded to float32 at most."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype)

        return replace(
            self,
            x=moved(self.x),
            norm=(moved(self.norm[0]), moved(self.norm[1]), self.norm[2]),
            w_in=moved(self.w_in),
            b_in=moved(self.b_in),
            inside=moved(self.inside),
            w_out=moved(self.w_out),
            b_out=self.b_out.to(device, torch.promote_types(dtype, torch.float32)),
        )


def block_case(rows: int, dim: int, attended: int, inside: int) -> BlockCase:
    """Random inputs, float64; the residual stream is off centre, as real ones are."""

    def random(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64)

    total = attended + inside
    return BlockCase(
        x=2 * random(rows, dim) + 0.5,
        norm=(random(dim), random(dim), EPS),
        w_in=random(total, dim) / dim**0.5,
        b_in=random(total),
        inside=random(rows, total),
        w_out=random(dim, total) / total**0.5,
        b_out=random(dim),
        attended=attended,
    )


@dataclass(frozen=True)
class StepCase:
    """Arguments of `decode_attention`, in its order."""

    qkv: Tensor
    rotary: Tensor
    keys: Tensor
    values: Tensor
    page_table: Tensor
    positions: Tensor
    slots: Tensor
    out: Tensor

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (
            self.qkv, self.rotary, self.keys, self.values, self.page_table, self.positions, self.slots, self.out
        )  # fmt: skip

    def copy(self) -> "StepCase":
        """The same with keys, values and a result of its own."""
        return replace(self, keys=self.keys.clone(), values=self.values.clone(), out=torch.empty_like(self.out))

    def strided(self) -> "StepCase":
        """The same with positions and slots that lie apart, as those of the runner do."""
        row = torch.stack((self.positions, self.slots, self.slots), dim=1)
        return replace(self, positions=row[:, 0], slots=row[:, 1])

    def to(self, dtype: torch.dtype, device: str) -> "StepCase":
        """The same numbers in another type, pages head by head as the cache has them."""
        pages = [
            store.to(device, dtype).transpose(1, 2).contiguous().transpose(1, 2) for store in (self.keys, self.values)
        ]
        row = torch.stack((self.positions, self.slots, self.slots), dim=1).to(device)  # strided, as the body has them
        return StepCase(
            self.qkv.to(device, dtype), self.rotary.to(device), *pages, self.page_table.to(device), row[:, 0],
            row[:, 1], self.out.to(device, dtype),
        )  # fmt: skip

    def in_fp8(self, k_scale: float, v_scale: float) -> "StepCase":
        """The same with pages in FP8."""
        stored = [
            quantise(store.float(), torch.float8_e4m3fn, scale)
            for store, scale in ((self.keys, k_scale), (self.values, v_scale))
        ]
        return replace(self, keys=stored[0], values=stored[1])


def step_case(
    positions: list[int], heads: int, kv_heads: int, dim: int, page: int, rotated: int, dtype: torch.dtype
) -> StepCase:
    """New positions of some rows; what lies where they will be written is no number, as are all foreign places."""
    lengths = [position + 1 for position in positions]
    _, keys, values, table, _ = scattered(lengths, heads, kv_heads, dim, page, dtype)
    slots = [int(table[row, position // page]) * page + position % page for row, position in enumerate(positions)]
    for store in (keys, values):
        store.view(-1, kv_heads, dim)[slots] = torch.nan
    angles = rotary_table(torch.arange(LONGEST), rotated, 10_000.0)
    rows = len(positions)
    return StepCase(
        qkv=torch.randn(rows, (heads + 2 * kv_heads) * dim).to(dtype),
        rotary=torch.stack(angles)[:, :, 0].contiguous(),
        keys=keys,
        values=values,
        page_table=table,
        positions=torch.tensor(positions, dtype=torch.int32),
        slots=torch.tensor(slots, dtype=torch.int32),
        out=torch.empty(rows, heads * dim + 3, dtype=dtype)[:, : heads * dim],  # rows lie apart
    )


@dataclass(frozen=True)
class SerialCase:
    """What goes into the products of a serial block.

    Attributes:
        x: ``[M, dim]``: the residual stream.
        gain: ``[dim]``: weight of its RMS norm.
        w_in: ``[A, dim]``.
        b_in: ``[A]``.
        w_gated: ``[2 F, dim]``.
        inside: ``[M, F]``: what SwiGLU may have left.
        w_out: ``[dim, F]``.
        eps: Of the norm.
    """

    x: Tensor
    gain: Tensor
    w_in: Tensor
    b_in: Tensor
    w_gated: Tensor
    inside: Tensor
    w_out: Tensor
    eps: float = 1e-6

    def to(self, dtype: torch.dtype, device: str = "cpu") -> "SerialCase":
        """The same rounded and on a device."""
        moved = {name: getattr(self, name) for name in ("x", "gain", "w_in", "b_in", "w_gated", "inside", "w_out")}
        return replace(self, **{name: tensor.to(device, dtype) for name, tensor in moved.items()})


def serial_case(rows: int, dim: int, attended: int, inside: int) -> SerialCase:
    """Random inputs, float64."""

    def random(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64)

    return SerialCase(
        x=2 * random(rows, dim) + 0.5,
        gain=random(dim) + 1,
        w_in=random(attended, dim) / dim**0.5,
        b_in=random(attended),
        w_gated=random(2 * inside, dim) / dim**0.5,
        inside=random(rows, inside),
        w_out=random(dim, inside) / inside**0.5,
    )

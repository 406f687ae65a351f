"""Adds the partial sums of all ranks to a residual stream, and normalises it for the next product.

```
rank 0   product ─> partial ─┐              ┌─ x + partial + partial ─> x ─ norm ─> rows
                             ├ all are here ┤
rank 1   product ─> partial ─┘              └─ x + partial + partial ─> x ─ norm ─> rows
```

Between cards that reach each other's memory one kernel does all of it (a one-shot all-reduce): each program tells the
same program of the other ranks that its row is there, waits for theirs, and reads their partial sums. All ranks add in
the same order and so keep equal streams. Other ranks let a collective operation add the partial sums.

A partial sum must not be overwritten while another rank may still read it. Sums that follow each other therefore use
different buffers: a rank that has met the others in one sum knows that they have left the sum before.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.device.peer_memory import PeerMemory
from photonlite.kernels.norms import residual_norm
from photonlite.kernels.triton_utils import dependent_launch, power_of_2, tl, triton, use_triton

Norm = tuple[Tensor, Tensor | None, float]
"""Weight ``[D]``, bias ``[D]`` and eps; without a bias it is an RMS norm."""

MOST_ROWS: Final = 64
MOST_RANKS: Final = 8
_BUFFERS: Final = 3
_BEGIN: Final = 4096  # bytes in front of the buffers: counts of each rank's rows, then own ones, int32


class RankSums:
    """The sums of a decoder step, `count` of them, over streams of `dim` numbers; every rank makes the same ones."""

    def __init__(self, ranks: RankGroup, dim: int, count: int) -> None:
        self._ranks = ranks
        self._dim = dim
        self._count = count

    def partial(self, x: Tensor, index: int) -> Tensor:
        """Return what takes this rank's part of a sum for a stream ``[M, D]``, float32 at least."""
        peers = self._peers(x)
        if peers is None:
            return x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, torch.float32))
        begin, size = self._begin(index), 4 * x.numel()
        return peers.own[begin : begin + size].view(torch.float32).view(x.shape)

    def add(self, x: Tensor, partial: Tensor, index: int, norm: Norm | None) -> Tensor:
        """Add all ranks' parts to the stream in place, with one rounding; return its norm, or itself without one."""
        peers = self._peers(x)
        if peers is not None:
            return self._meet(x, peers, index, norm)
        x.add_(self._ranks.sum(partial))
        return x if norm is None else residual_norm(x, None, None, *norm)[1]

    def _peers(self, x: Tensor) -> PeerMemory | None:
        """Return the memory that ranks share, if the kernel can add in it.

        A single sum in a step would use the same buffer again and again.
        """
        peers = self._ranks.peers
        fits = peers is not None and _BEGIN + _BUFFERS * self._bytes <= len(peers.own)
        able = fits and len(x) <= MOST_ROWS and self._ranks.count <= MOST_RANKS and self._count > 1
        return peers if able and use_triton(x) else None

    @property
    def _bytes(self) -> int:
        return 4 * MOST_ROWS * self._dim

    def _begin(self, index: int) -> int:
        """Two buffers take turns; the last of an odd number of sums has one of its own, as the next step follows it."""
        odd_end = index % 2 == 0 and index == self._count - 1
        return _BEGIN + (2 if odd_end else index % 2) * self._bytes

    def _meet(self, x: Tensor, peers: PeerMemory, index: int, norm: Norm | None) -> Tensor:
        out = x if norm is None else torch.empty_like(x)
        weight, bias, eps = (x, x, 0.0) if norm is None else norm
        kind = "" if norm is None else "squares" if bias is None else "moments"
        add_kernel[(len(x),)](
            x, weight, weight if bias is None else bias, out, peers.addresses, peers.ended, self._begin(index),
            x.shape[1], eps, self._ranks.rank,
            RANKS=self._ranks.count, ROWS=MOST_ROWS, WIDTH=power_of_2(x.shape[1]), NORM=kind,
            num_warps=8 if x.shape[1] > 2048 else 4, **dependent_launch(x),
        )  # fmt: skip
        return out


@triton.jit
def add_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, addresses: tl.tensor, ended: tl.tensor,
    begin: tl.tensor, width: tl.tensor, eps: tl.tensor, rank: tl.tensor,
    RANKS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Meet the other ranks for row `program_id(0)`, and add up what they have for it."""
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < width
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    gain = tl.zeros([WIDTH], tl.float32)
    shift = tl.zeros([WIDTH], tl.float32)
    if NORM != "":
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if NORM == "moments":
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    _meet(addresses, ended, row, rank, RANKS, ROWS)
    for other in tl.static_range(RANKS):
        partial = (tl.load(addresses + other) + begin).to(tl.pointer_type(tl.float32))
        cell = tl.multiple_of(partial + row * width + column, 16)
        value += tl.load(cell, mask=inside, other=0.0, cache_modifier=".cg")
    rounded = value.to(x.dtype.element_ty)
    tl.store(x + row * width + column, rounded, mask=inside)
    if NORM != "":
        value = rounded.to(tl.float32)
        if NORM == "moments":
            value = tl.where(inside, value - tl.sum(value, axis=0) / width, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
        tl.store(out + row * width + column, (value * scale * gain + shift).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _meet(
    addresses: tl.tensor, ended: tl.tensor, row: tl.tensor, rank: tl.tensor, RANKS: tl.constexpr, ROWS: tl.constexpr
) -> None:
    """Tell all ranks that this one's part of a row is there, and wait until theirs are, or the ranks have ended.

    Each rank counts its sums of a row. Counts wrap around: only their difference says which is ahead.
    """
    own = tl.load(addresses + rank).to(tl.pointer_type(tl.int32))
    number = own + RANKS * ROWS + row
    count = tl.load(number) + 1
    for other in tl.static_range(RANKS):
        if other != rank:
            there = tl.load(addresses + other).to(tl.pointer_type(tl.int32)) + rank * ROWS + row
            tl.atomic_xchg(there, count, sem="release", scope="sys")
    for other in tl.static_range(RANKS):
        if other != rank:
            here = own + other * ROWS + row
            behind = tl.load(here, volatile=True) - count
            while behind < 0:
                behind = tl.load(here, volatile=True) - count
                if tl.load(ended, volatile=True) != 0:
                    behind = 0
            tl.atomic_or(here, 0, sem="acquire", scope="sys")  # Triton drops an addition of zero that nothing uses
    tl.debug_barrier()  # one thread has acquired for all, and all have loaded the count
    tl.store(number, count)

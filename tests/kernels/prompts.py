"""Prompts of several rows on one axis, their keys and values scattered over pages that are full of NaN elsewhere."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from photonlite.kernels.reference.attention import FP8, indexable, quantise


@dataclass(frozen=True)
class Span:
    """Positions `[start, start + count)` of a row, of which the first `block` see each other in both directions."""

    start: int
    count: int
    block: int = 0


@dataclass(frozen=True)
class Prompts:
    """Arguments of `paged_prefill_attention`, and what was stored, by row."""

    q: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    tiles: Tensor
    k: list[Tensor]
    v: list[Tensor]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.q, self.keys, self.values, self.table, self.tiles

    def to(self, device: str) -> "Prompts":
        moved = [tensor.to(device) for tensor in self.arguments]
        # A copy to another device packs pages anew: heads would no longer lie one behind the other.
        moved[1:3] = (pages.transpose(1, 2).contiguous().transpose(1, 2) for pages in moved[1:3])
        return replace(self, **dict(zip(("q", "keys", "values", "table", "tiles"), moved, strict=True)))


def tiled(spans: list[Span], size: int, empty: int = 0) -> Tensor:
    """AttentionConfig rows into tiles of up to `size` queries; some empty ones behind them."""
    tiles, first = [], 0
    for row, span in enumerate(spans):
        for done in range(0, span.count, size):
            tiles.append((row, first + done, min(size, span.count - done), span.start + done, span.block))
        first += span.count
    return torch.tensor(tiles + [(0, 0, 0, 0, 0)] * empty, dtype=torch.int32)


def head_major(pages: int, page: int, kv_heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Pages of NaN, `[pages, page, H_kv, D]`, that lie head by head."""
    wide = torch.full((pages, kv_heads, page, dim), torch.nan, dtype=torch.float32)
    return wide.to(dtype).transpose(1, 2)


def scattered_prompts(
    spans: list[Span],
    heads: int,
    kv_heads: int,
    dim: int,
    page: int,
    dtype: torch.dtype,
    *,
    kv_dtype: torch.dtype | None = None,
    tile: int = 64,
    scale: float = 1.0,
) -> Prompts:
    """Random prompts; the tables end in ids of pages that do not exist."""
    ends = [span.start + span.count for span in spans]
    counts = [-(-end // page) for end in ends]
    order = iter((torch.randperm(sum(counts) + 2) + 1).tolist())
    table = torch.full((len(spans), max(counts) + 2), 10**6, dtype=torch.int32)
    stores = [head_major(sum(counts) + 3, page, kv_heads, dim, kv_dtype or dtype) for _ in range(2)]
    kept: list[list[Tensor]] = [[], []]
    for row, end in enumerate(ends):
        table[row, : counts[row]] = torch.tensor([next(order) for _ in range(counts[row])])
        places = torch.arange(end)
        at = table[row, places // page].long(), places % page
        for store, rows in zip(stores, kept, strict=True):
            stored = quantise(torch.randn(end, kv_heads, dim).to(dtype), store.dtype, scale)
            indexable(store)[at] = indexable(stored)
            rows.append(stored.to(torch.float32) * scale if store.dtype == FP8 else stored)
    q = torch.randn(sum(span.count for span in spans), heads, dim).to(dtype)
    return Prompts(q, stores[0], stores[1], table, tiled(spans, tile, empty=2), *kept)

"""Attention over a paged KV cache: where a layer's keys and values go, and which positions each position sees.

```
decode     one position a row         writes its slot, sees positions 0 to its own through the page table
prefill    many positions a row       writes theirs, and sees

            cached | block  | tail        cached   positions before the first, gathered through the page table
   block       x   |   x    |             block    BOS and image: every position sees every other
   tail        x   |   x    | up to self  tail     the rest: causal
```

Pages hold old data, NaN included. It is set to zero where a mask hides it: a probability of 0 times NaN is NaN.

A cache in FP8 rounds what is written. A prefill attends to its own keys and values rounded the same way: the result for
a position must not depend on which other positions came in the same launch.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from photonlite.batch import PageCopy
from photonlite.kernels.paged_attention import paged_attention
from photonlite.kernels.reference.attention import FP8, dequantise, gather_pages, indexable, quantise, write_kv
from photonlite.models.base import ModelShape
from photonlite.models.layers import attend
from photonlite.runner.slot import PAGES, POSITION, WRITE_SLOT


class PagedCache:
    """Keys and values of all sequences, allocated once.

    `keys` and `values` are ``[layers, pages, page_size, H_kv, D]``, not initialised; the scratch page is one of the
    pages. In memory a page lies head by head: what one head reads of it is contiguous. `scales`, of keys and of values
    of each layer, are 1 unless `dtype` is FP8: what is stored is a number divided by them.
    """

    def __init__(
        self,
        shape: ModelShape,
        pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
        scales: Sequence[tuple[float, float]] = (),
    ) -> None:
        if scales and (dtype != FP8 or len(scales) != shape.layers):
            raise AssertionError(f"{len(scales)} pairs of scales for {shape.layers} layers in {dtype}")
        size = (shape.layers, pages, shape.kv_heads, page_size, shape.head_dim)
        self.keys = torch.empty(size, device=device, dtype=dtype).transpose(2, 3)
        self.values = torch.empty(size, device=device, dtype=dtype).transpose(2, 3)
        self.page_size = page_size
        self.scales = tuple(scales) or ((1.0, 1.0),) * shape.layers
        self._layers = tuple(zip(self.keys.unbind(), self.values.unbind(), strict=True))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one layer's keys and values, each ``[pages, page_size, H_kv, D]``."""
        return self._layers[index]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages one after the other, keys and values of all layers."""
        for copy in copies:
            for cache in map(indexable, (self.keys, self.values)):
                cache[:, copy.target].copy_(cache[:, copy.source])

    def close(self) -> None:
        """Free the memory."""
        self.keys = self.values = self.keys.new_empty(0)
        self._layers = ()


def plan_free_attention() -> AbstractContextManager[None]:
    """Exclude backends of scaled dot-product attention that plan for each new shape.

    cuDNN takes 40 to 500 ms for a new one (H200, PyTorch 2.11), and prompts constantly have new lengths.
    """
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class DecodeAttention:
    """One position a row; see `models.layers.Attention`.

    `rows` are int32 ``[B, 3 + P]``, as `runner.slot` lays them out; P may be cut to the pages in use.
    """

    def __init__(self, cache: PagedCache, rows: Tensor) -> None:
        self._cache = cache
        self._slots = rows[:, WRITE_SLOT].long()  # [B]
        self._lengths = rows[:, POSITION] + 1  # [B]
        self._table = rows[:, PAGES:]  # [B, P]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the position of each row and attend to all up to it; q: ``[B, 1, H, D]``."""
        keys, values = self._cache.layer(layer)
        scales = self._cache.scales[layer]
        write_kv(keys, values, k[:, 0], v[:, 0], self._slots, *scales)
        return paged_attention(q[:, 0], keys, values, self._table, self._lengths, *scales)[:, None]


class PrefillAttention:
    """Many positions a row, all rows alike but for padding at their ends; see `models.layers.Attention`.

    Args:
        cache: Keys and values.
        slots: Where positions are written, int64 ``[B, T]``; padding goes to the scratch page.
        block: Leading positions that see each other in both directions; 0 for none.
        table: Pages of the cached positions, int64 ``[B, P]``; P = 0 where nothing is cached.
        starts: How many positions are cached, int64 ``[B]``.
    """

    def __init__(self, cache: PagedCache, slots: Tensor, block: int, table: Tensor, starts: Tensor) -> None:
        self._cache = cache
        self._slots = slots.flatten()
        self._block = block
        self._table = table
        count, own = slots.shape
        tail = own - block
        # A position of the tail sees the block and the tail up to itself.
        mask = torch.ones(tail, own, dtype=torch.bool, device=slots.device).tril(block)
        cached = table.shape[1] * cache.page_size
        seen = torch.arange(cached, device=slots.device) < starts[:, None]  # [B, S]
        self._hidden = ~seen
        if cached:
            mask = torch.cat((seen[:, None].expand(-1, tail, -1), mask.expand(count, -1, -1)), dim=-1)
            mask = mask[:, None]  # [B, 1, tail, S + T]
        self._mask = mask

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the positions of each row and attend; q: ``[B, T, H, D]``."""
        keys, values = self._cache.layer(layer)
        k_scale, v_scale = self._cache.scales[layer]
        write_kv(keys, values, k.flatten(0, 1), v.flatten(0, 1), self._slots, k_scale, v_scale)
        k, v = self._seen(keys, k, k_scale), self._seen(values, v, v_scale)
        # The block is attended to without a mask: the fastest kernels take none.
        block = self._block
        if block == 0:
            return attend(q, k, v, self._mask)
        first = attend(q[:, :block], k[:, :block], v[:, :block], None)
        if q.shape[1] == block:
            return first
        return torch.cat((first, attend(q[:, block:], k, v, self._mask)), dim=1)

    def _seen(self, pages: Tensor, own: Tensor, scale: float) -> Tensor:
        """Return a layer's cached positions, zero beyond each row's start, and its own: ``[B, S + T, H_kv, D]``."""
        own = dequantise(quantise(own, pages.dtype, scale), own.dtype, scale)
        if not self._table.shape[1]:
            return own
        return torch.cat((gather_pages(pages, self._table, self._hidden, own.dtype, scale), own), dim=1)

"""Attention over a paged KV cache: where keys and values are written, and which positions each position sees.

```
decode     one position a row         writes its slot, sees positions 0 to its own through the page table
prefill    many positions a row       writes theirs, and sees

            cached | block  | tail        cached   positions before the first, gathered through the page table
   block       x   |   x    |             block    BOS and image: every position sees every other
   tail        x   |   x    | up to self  tail     the rest: causal
```

Pages hold old data, NaN included, which must not be read: a probability of 0 times NaN is NaN.

An FP8 cache stores numbers divided by two constant scales a layer. A prefill attends to its own keys and values rounded
the same way, so that results do not depend on which positions share a launch. Scales come from the weights alone, so
that answers do not depend on earlier requests. They are powers of two, which change no mantissa. A scaled layer's root
mean square is in [2, 4): a hundred times below e4m3's largest number, 448, and as far above its subnormals.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from photonlite.batch import PageCopy
from photonlite.config import KvDtype
from photonlite.kernels.fp8 import require_fp8
from photonlite.kernels.paged_attention import paged_attention
from photonlite.kernels.reference.attention import FP8, dequantise, indexable, quantise, write_kv
from photonlite.models.base import Model, ModelShape
from photonlite.models.layers import attend
from photonlite.runner.slot import PAGES, POSITION, WRITE_SLOT, PromptRow


@dataclass(frozen=True, slots=True)
class KvFormat:
    """The type of stored keys and values, and in FP8 the scales of keys and of values of each layer."""

    dtype: torch.dtype
    scales: tuple[tuple[float, float], ...] = ()


def kv_format(setting: KvDtype, model: Model, device: torch.device, dtype: torch.dtype) -> KvFormat:
    """Return how keys and values are stored; SettingsError for FP8 on a card without it."""
    if setting == "auto":
        return KvFormat(dtype)
    require_fp8(device, "'kv_dtype' is 'fp8'", "leave kv_dtype at 'auto'")
    return KvFormat(FP8, tuple((fp8_scale(key), fp8_scale(value)) for key, value in model.kv_statistics()))


def fp8_scale(rms: float) -> float:
    """Return the power of two that scales a root mean square into [2, 4); 1 for one that is zero or not finite."""
    if not 0 < rms < math.inf:
        return 1.0
    return 2.0 ** (math.frexp(rms)[1] - 2)


class PagedCache:
    """Keys and values of all sequences, ``[layers, pages, page_size, H_kv, D]``; `pages` includes the scratch page.

    In memory a page lies head by head: what one head reads is contiguous. FP8 stores numbers divided by `scales`.
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
        return self._layers[index]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            for cache in map(indexable, (self.keys, self.values)):
                cache[:, copy.target].copy_(cache[:, copy.source])

    def close(self) -> None:
        self.keys = self.values = self.keys.new_empty(0)
        self._layers = ()


def plan_free_attention() -> AbstractContextManager[None]:
    """Exclude backends that plan for each new shape: cuDNN takes 40 to 500 ms for that (H200, PyTorch 2.11)."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class DecodeAttention:
    """One position a row; `rows`, int32 ``[B, 3 + P]`` as in `runner.slot`, may be cut to the pages in use."""

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
    """Prompts on one axis, written to `slots`, int ``[T]``; `table`, int ``[R, P]``, has the pages of each row."""

    def __init__(self, cache: PagedCache, rows: Sequence[PromptRow], slots: Tensor, table: Tensor) -> None:
        self._cache = cache
        self._rows = rows
        self._slots = slots.long()
        self._cached = [table[row.index, : -(-row.start // cache.page_size)].long() for row in rows]
        # A position of the tail sees what is cached, the block, and the tail up to itself.
        self._masks = [
            torch.ones(row.count - row.block, row.start + row.count, dtype=torch.bool, device=slots.device).tril(
                row.start + row.block
            )
            for row in rows
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store all positions and attend; q: ``[1, T, H, D]``."""
        keys, values = self._cache.layer(layer)
        k_scale, v_scale = self._cache.scales[layer]
        write_kv(keys, values, k[0], v[0], self._slots, k_scale, v_scale)
        k = dequantise(quantise(k, keys.dtype, k_scale), k.dtype, k_scale)
        v = dequantise(quantise(v, keys.dtype, v_scale), v.dtype, v_scale)
        parts: list[Tensor] = []
        begin = 0
        for row, cached, mask in zip(self._rows, self._cached, self._masks, strict=True):
            end, block = begin + row.count, begin + row.block
            row_k, row_v = k[:, begin:end], v[:, begin:end]
            if row.start:
                row_k = torch.cat((_gather(keys, cached, row.start, k.dtype, k_scale), row_k), dim=1)
                row_v = torch.cat((_gather(values, cached, row.start, v.dtype, v_scale), row_v), dim=1)
            if row.block:  # attended to without a mask: the fastest kernels take none
                parts.append(attend(q[:, begin:block], row_k[:, : row.block], row_v[:, : row.block], None))
            if end > block:
                parts.append(attend(q[:, block:end], row_k, row_v, mask))
            begin = end
        return torch.cat(parts, dim=1)


def _gather(pages: Tensor, table: Tensor, count: int, dtype: torch.dtype, scale: float) -> Tensor:
    """Return the first `count` cached positions of a row, ``[1, count, H_kv, D]``."""
    found = indexable(pages)[table].view(pages.dtype).flatten(0, 1)[:count]
    return dequantise(found, dtype, scale)[None]

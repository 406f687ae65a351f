"""Attention over a paged KV cache: where a layer's keys and values go, and which positions each position sees.

```
decode     one position a row         writes its slot, sees positions 0 to its own through the page table
prefill    many positions a row       writes theirs, and sees

            cached | block  | tail        cached   positions before the first, gathered through the page table
   block       x   |   x    |             block    BOS and image: every position sees every other
   tail        x   |   x    | up to self  tail     the rest: causal
```

Pages hold old data, NaN included, which must not be read: a probability of 0 times NaN is NaN.

A cache in FP8 rounds what is written, with two constant scales a layer. A prefill attends to its own keys and values
rounded the same way: the result for a position must not depend on which other positions came in the same launch. The
scales come from the weights alone, so that answers do not depend on earlier requests:

```
2**-9 .. 2**-6          [2, 4)                 448     e4m3, in stored numbers: subnormal, normal, largest
                 root mean square of a layer           a hundred times as much is kept as it is, more is cut
```

Powers of two change no mantissa: dividing by them and multiplying again loses nothing that e4m3 does not lose.
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
    """Decide how keys and values are stored, by `EngineConfig.kv_dtype` and the type of the weights.

    Raises:
        SettingsError: The card has no FP8.
    """
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
    """Prompts one after the other on one axis, each a call of PyTorch's attention; see `models.layers.Attention`.

    `slots` are where positions are written, int ``[T]``; `table` has the pages of each row, int ``[R, P]``.
    """

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

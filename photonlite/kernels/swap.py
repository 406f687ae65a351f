"""Moving pages between the KV cache and contiguous staging memory, in one launch for all layers.

```
cache    keys [layers, P, W], values [layers, P, W]       a page's numbers lie apart, layer by layer
staging  [N, 2, layers, W]                                a page's numbers lie together: one copy over the bus
```

Words are int32, whatever the numbers of the cache are. A program moves some words of one page, in one layer.
"""

from __future__ import annotations

from torch import Tensor

from photonlite.kernels.reference import swap as reference
from photonlite.kernels.triton_utils import power_of_2, tl, triton, use_triton

_WORDS = 4096
"""Words of a program at most: 16 KiB keep its loads in flight."""


def gather_pages(keys: Tensor, values: Tensor, pages: Tensor, staging: Tensor) -> None:
    """Copy `pages`, int64 ``[N]``, of both caches, int32 ``[layers, P, W]``, to `staging`, ``[N, 2, layers, W]``.

    All are contiguous, and pages lie in the caches.
    """
    if use_triton(keys):
        _move(keys, values, pages, staging, gather=True)
    else:
        reference.gather_pages(keys, values, pages, staging)


def scatter_pages(staging: Tensor, pages: Tensor, keys: Tensor, values: Tensor) -> None:
    """Copy `staging`, ``[N, 2, layers, W]``, to different `pages` of both caches; as `gather_pages` otherwise."""
    if use_triton(keys):
        _move(keys, values, pages, staging, gather=False)
    else:
        reference.scatter_pages(staging, pages, keys, values)


def _move(keys: Tensor, values: Tensor, pages: Tensor, staging: Tensor, *, gather: bool) -> None:
    layers, count, words = keys.shape
    block = min(_WORDS, power_of_2(words))
    grid = (-(-words // block), 2 * layers, len(pages))
    _move_kernel[grid](
        keys, values, pages, staging, count, layers, words, GATHER=gather, WORDS=block, num_warps=8
    )  # fmt: skip


@triton.jit
def _move_kernel(
    keys: tl.tensor, values: tl.tensor, pages: tl.tensor, staging: tl.tensor,
    count: tl.tensor, layers: tl.tensor, words: tl.tensor,
    GATHER: tl.constexpr, WORDS: tl.constexpr,
) -> None:  # fmt: skip
    """Move words `program_id(0)` of layer `program_id(1)`, those of values behind those of keys, of a page."""
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    part, place = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    there = word < words
    layer = part % layers
    page = (layer * count + tl.load(pages + place)) * words + word
    staged = staging + (place * 2 * layers + part) * words + word
    if part < layers:
        _copy(keys + page, staged, there, GATHER)
    else:
        _copy(values + page, staged, there, GATHER)


@triton.jit
def _copy(cell: tl.tensor, staged: tl.tensor, there: tl.tensor, GATHER: tl.constexpr) -> None:
    if GATHER:
        tl.store(staged, tl.load(cell, mask=there), mask=there)
    else:
        tl.store(cell, tl.load(staged, mask=there), mask=there)

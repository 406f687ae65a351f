"""Attention of single queries over paged keys and values on the CPU.

```
row 0   [ pages of an image ][ own ]      gathered, then attended to
row 1   [ the same pages    ][ own ]      only its own are gathered
row 2   [ others ][ own ]                 gathered
```

A row reads what it sees and no more, so that it needs neither padding nor a mask. The first pages that it has in common
with the row before are not gathered again.
"""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference.attention import ScoreRule, dequantise, indexable


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, lengths: Tensor, k_scale: float, v_scale: float,
    rule: ScoreRule | None,
) -> Tensor:  # fmt: skip
    """Attend as the function of the same name in `kernels.paged_attention` says."""
    out, page, held = torch.zeros_like(q), keys.shape[1], list[int]()
    ends = lengths.tolist()
    pages = -(-max(ends) // page)
    table = page_table[:, :pages].tolist()  # it is as wide as the context is long
    k, v = (store.new_empty(pages, *store.shape[1:], dtype=q.dtype) for store in (keys, values))
    for row, end in enumerate(ends):
        if end == 0:
            continue
        begin = 0 if rule is None or rule.window is None else max(0, end - rule.window)
        skipped = begin // page
        held, before = table[row][skipped : -(-end // page)], held
        same = _common(before, held)
        fresh = page_table[row, skipped + same : skipped + len(held)]
        for store, target, scale in ((keys, k, k_scale), (values, v, v_scale)):
            _gather(store, fresh, target[same : len(held)], scale)
        seen = slice(begin - skipped * page, end - skipped * page)
        row_k, row_v = (found.flatten(0, 1)[seen].transpose(0, 1)[None] for found in (k, v))  # [1, H_kv, S, D]
        out[row] = _attend(q[row, None, :, None], row_k, row_v, rule)[0, :, 0]
    return out


def _common(first: list[int], second: list[int]) -> int:
    """Return how many numbers at the beginning of two lists are the same."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _gather(store: Tensor, pages: Tensor, target: Tensor, scale: float) -> None:
    """Copy pages, int32 ``[P]``, to a target ``[P, page, H_kv, D]`` in its type, times a scale if they are FP8."""
    if store.dtype == target.dtype:
        torch.index_select(store, 0, pages, out=target)
    else:
        found = indexable(store).index_select(0, pages).view(store.dtype)
        target.copy_(dequantise(found, target.dtype, scale))


def _attend(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None) -> Tensor:
    if rule is not None:
        return rule.attend(q, k, v, None)
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

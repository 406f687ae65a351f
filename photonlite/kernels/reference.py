"""The truth of every kernel, in plain PyTorch: runs anywhere, in any floating type."""

import torch
from torch import Tensor
from torch.nn import functional


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, lengths: Tensor) -> Tensor:
    """Scaled dot-product attention of one query position a row, over keys and values that lie in pages.

    Args:
        q: ``[B, H, D]``.
        keys: ``[pages, page, H_kv, D]``; every ``H / H_kv`` query heads share one head.
        values: ``[pages, page, H_kv, D]``.
        page_table: int32 ``[B, P]``: page of positions ``[0, page)``, ``[page, 2 page)`` and so on.
        lengths: int32 ``[B]``: row b sees positions ``[0, lengths[b])``, at most ``P * page``. What lies behind them,
            in the table or in the last page, is not looked at: it may be another sequence's, or no number.

    Returns:
        ``[B, H, D]``; the scale is ``1 / sqrt(D)``; zeros where a row sees nothing.
    """
    size = keys.shape[1]
    positions = torch.arange(page_table.shape[1] * size, device=q.device)
    seen = positions < lengths[:, None]  # [B, S]
    table = page_table.long().masked_fill(~seen[:, ::size], 0)
    unseen = ~seen[..., None, None]
    k = keys[table].flatten(1, 2).masked_fill(unseen, 0.0)  # [B, S, H_kv, D]
    v = values[table].flatten(1, 2).masked_fill(unseen, 0.0)
    # A row that sees nothing looks at everything: all of it is 0 by now, where an empty softmax may be a NaN.
    mask = seen | (lengths == 0)[:, None]
    out = functional.scaled_dot_product_attention(
        q[:, :, None],
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask[:, None, None],
        enable_gqa=q.shape[1] != keys.shape[2],
    )
    return out[:, :, 0]


def write_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write keys and values of some positions into pages.

    Args:
        keys: ``[pages, page, H_kv, D]``, contiguous; written in place.
        values: ``[pages, page, H_kv, D]``, contiguous; written in place.
        k: ``[N, H_kv, D]``.
        v: ``[N, H_kv, D]``.
        slots: int64 ``[N]``: page * page size + place in the page. Of equal ones any may win.
    """
    for target, source in ((keys, k), (values, v)):
        target.view(-1, *target.shape[2:]).index_copy_(0, slots, source)

"""The truth of every kernel, in plain PyTorch: runs anywhere, in any floating type."""

import torch
from torch import Tensor
from torch.nn import functional

FP8 = torch.float8_e4m3fn
"""Three bits of mantissa, normal from 2**-6 to 448, no infinities."""


def quantise(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Turn keys or values into what a cache stores: ``x / scale``, in FP8 the largest number where it is larger.

    Args:
        x: Of any shape.
        dtype: Of the cache.
        scale: Of FP8; a cache of another type stores `x` as it is.
    """
    if dtype != FP8:
        return x
    # Conversion makes a NaN of what is too large, in some versions of PyTorch; a NaN stays one here too.
    largest = torch.finfo(FP8).max
    return (x / scale).clamp(-largest, largest).to(FP8)


def dequantise(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Give the keys or values that a cache stores as `x`, in a type to compute with; see :func:`quantise`."""
    return x.to(dtype) * scale if x.dtype == FP8 else x


def movable(x: Tensor) -> Tensor:
    """Give the same memory in a type that PyTorch can index and copy: as bytes where it is FP8."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


def gather_pages(pages: Tensor, table: Tensor, unseen: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Gather positions out of pages.

    Args:
        pages: Keys or values, ``[pages, page, H_kv, D]``, of any strides.
        table: int64 ``[B, P]``: page of each row's positions ``[0, page)``, ``[page, 2 page)`` and so on.
        unseen: bool ``[B, P * page]``: positions that become 0, whatever lies there.
        dtype: To compute with.
        scale: See :func:`quantise`.

    Returns:
        ``[B, P * page, H_kv, D]``.
    """
    found = movable(pages)[table].view(pages.dtype).flatten(1, 2)
    return dequantise(found, dtype, scale).masked_fill(unseen[..., None, None], 0.0)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """Scaled dot-product attention of one query position a row, over keys and values that lie in pages.

    Args:
        q: ``[B, H, D]``.
        keys: ``[pages, page, H_kv, D]``; every ``H / H_kv`` query heads share one head.
        values: ``[pages, page, H_kv, D]``.
        page_table: int32 ``[B, P]``: page of positions ``[0, page)``, ``[page, 2 page)`` and so on.
        lengths: int32 ``[B]``: row b sees positions ``[0, lengths[b])``, at most ``P * page``. What lies behind them,
            in the table or in the last page, is not looked at: it may be another sequence's, or no number.
        k_scale: Of keys in FP8; see :func:`quantise`.
        v_scale: Of values in FP8.

    Returns:
        ``[B, H, D]``; the scale is ``1 / sqrt(D)``; zeros where a row sees nothing.
    """
    size = keys.shape[1]
    positions = torch.arange(page_table.shape[1] * size, device=q.device)
    seen = positions < lengths[:, None]  # [B, S]
    table = page_table.long().masked_fill(~seen[:, ::size], 0)
    k = gather_pages(keys, table, ~seen, q.dtype, k_scale)  # [B, S, H_kv, D]
    v = gather_pages(values, table, ~seen, q.dtype, v_scale)
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


def write_kv(
    keys: Tensor,
    values: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write keys and values of some positions into pages.

    Args:
        keys: ``[pages, page, H_kv, D]``, of any strides; written in place.
        values: ``[pages, page, H_kv, D]``, of any strides; written in place.
        k: ``[N, H_kv, D]``.
        v: ``[N, H_kv, D]``.
        slots: int64 ``[N]``: page * page size + place in the page. Of equal ones any may win.
        k_scale: Of keys in FP8; see :func:`quantise`.
        v_scale: Of values in FP8.
    """
    page, place = slots // keys.shape[1], slots % keys.shape[1]
    for target, source, scale in ((keys, k, k_scale), (values, v, v_scale)):
        movable(target).index_put_((page, place), movable(quantise(source, target.dtype, scale)))

"""The truth of the kernels of a fused prefill, in plain PyTorch: runs anywhere, in any floating type."""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference import gather_pages, write_kv


def rotary_gelu_write(
    h: Tensor,
    positions: Tensor,
    slots: Tensor | None,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Take apart what one product gave: rotate queries and keys, store keys and values, activate the MLP's inside.

    Args:
        h: ``[T, (H + 2 H_kv) D + F]``: queries, keys, values and the inside of the MLP, F >= 0.
        positions: int32 ``[T]``.
        slots: int32 ``[T]``, page * page size + place: where keys and values are stored. Of equal ones any may win.
            None stores nothing.
        rotary: Cosines and sines, float32 ``[2, positions, R / 2]``: the first R numbers of a head are rotated, in two
            halves; see :func:`photonlite.models.layers.rotate`.
        keys: ``[pages, page, H_kv, D]``, of any strides with the last 1; written in place.
        values: The same.
        heads: Query heads H; 0 where `h` has none.
        k_scale: Of keys in FP8; see :func:`photonlite.kernels.reference.quantise`.
        v_scale: Of values in FP8.

    Returns:
        Queries ``[T, H, D]``, and ``[T, H D + F]``: room for the output of attention, then the activated inside.
    """
    kv_heads, dim = keys.shape[2:]
    width = (heads + 2 * kv_heads) * dim
    q, k, v = h[:, :width].reshape(len(h), -1, dim).split_with_sizes((heads, kv_heads, kv_heads), dim=1)
    cos, sin = rotary[:, positions.long(), None]  # [T, 1, R / 2]
    if slots is not None:
        write_kv(keys, values, _rotated(k, cos, sin), v, slots.long(), k_scale, v_scale)
    inside = functional.gelu(h[:, width:], approximate="tanh")
    return _rotated(q, cos, sin), torch.cat((h.new_empty(len(h), heads * dim), inside), dim=1)


def paged_prefill_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    tiles: Tensor,
    out: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Scaled dot-product attention of many positions of several rows, over keys and values that lie in pages.

    Args:
        q: ``[T, H, D]``: the rows' positions, one row after the other.
        keys: ``[pages, page, H_kv, D]``; every ``H / H_kv`` query heads share one. What `q` itself belongs to is there.
        values: ``[pages, page, H_kv, D]``.
        page_table: int32 ``[R, P]``: page of positions ``[0, page)``, ``[page, 2 page)`` and so on of each row.
        tiles: int32 ``[N, 5]``: queries that are worked on together, consecutive ones of one row: the row, the first of
            them in `q`, how many they are (0 for none at all), the position of the first, and the leading positions of
            the row that see each other in both directions. A query at position p sees ``[0, max(p + 1, block))``; what
            lies behind that is not looked at: it may be another sequence's, or no number.
        out: ``[T, H D]``, of any strides with the last 1; written in place where tiles are.
        k_scale: Of keys in FP8; see :func:`photonlite.kernels.reference.quantise`.
        v_scale: Of values in FP8.
    """
    size = keys.shape[1]
    for row, first, count, position, block in tiles.tolist():
        if count == 0:
            continue
        limits = torch.arange(position + 1, position + count + 1, device=q.device).clamp(min=block)
        stop = max(position + count, block)
        table = page_table[row : row + 1, : -(-stop // size)].long()
        places = torch.arange(table.shape[1] * size, device=q.device)
        unseen = (places >= stop)[None]
        k = gather_pages(keys, table, unseen, q.dtype, k_scale)  # [1, S, H_kv, D]
        v = gather_pages(values, table, unseen, q.dtype, v_scale)
        found = functional.scaled_dot_product_attention(
            q[None, first : first + count].transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=places < limits[:, None],
            enable_gqa=q.shape[1] != keys.shape[2],
        )
        out[first : first + count] = found[0].transpose(0, 1).flatten(1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    real, imag, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = torch.cat((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)

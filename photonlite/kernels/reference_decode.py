"""The truth of the kernels of a fused decode step, in plain PyTorch: runs anywhere, in any floating type."""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.launching import power_of_2
from photonlite.kernels.reference import paged_attention, write_kv


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: tuple[Tensor, Tensor, float] | None = None,
    gelu: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Map a few rows; see :func:`photonlite.kernels.skinny.skinny_linear`."""
    if norm is not None:
        x = functional.layer_norm(x, x.shape[-1:], *norm)
    result = functional.linear(x, weight, bias)
    if gelu:
        result = functional.gelu(result, approximate="tanh")
    return result if out is None else out.copy_(result)


def linear_in(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor, float],
    plain: Tensor,
    activated: Tensor,
) -> None:
    """Map the normalised residual stream into a block; see :func:`photonlite.kernels.skinny.linear_in`."""
    width = plain.shape[1]
    result = functional.linear(functional.layer_norm(x, x.shape[-1:], *norm), weight, bias)
    plain.copy_(result[:, :width])
    activated.copy_(functional.gelu(result[:, width:], approximate="tanh"))


def linear_out(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, stats: Tensor | None) -> None:
    """Map a block's inside back and add it; see :func:`photonlite.kernels.skinny.linear_out`."""
    residual.copy_(residual + functional.linear(x, weight) + bias)
    if stats is not None:
        tile_statistics(residual, power_of_2(-(-residual.shape[1] // stats.shape[1])), out=stats)


def tile_statistics(x: Tensor, tile: int, *, out: Tensor | None = None) -> Tensor:
    """Give each row's mean and sum of squared deviations by tiles of columns.

    Args:
        x: ``[M, N]``.
        tile: Columns of a tile; the last may have fewer.
        out: Where to put them.

    Returns:
        ``[2, T, M]``, at least float32.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    parts = [
        (part.mean(dim=1), part.var(dim=1, correction=0) * part.shape[1]) for part in torch.split(wide, tile, dim=1)
    ]
    stats = torch.stack([torch.stack(one) for one in zip(*parts, strict=True)])
    return stats if out is None else out.copy_(stats)


def decode_attention(
    qkv: Tensor,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    positions: Tensor,
    slots: Tensor,
    out: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Rotate, write, attend; see :func:`photonlite.kernels.decode_attention.decode_attention`."""
    kv_heads, dim = keys.shape[2:]
    heads = qkv.view(len(qkv), -1, dim)
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    cos, sin = rotary[:, positions.long(), None]  # [B, 1, R / 2]
    write_kv(keys, values, _rotated(k, cos, sin), v, slots.long(), k_scale=k_scale, v_scale=v_scale)
    found = paged_attention(
        _rotated(q, cos, sin), keys, values, page_table, positions + 1, k_scale=k_scale, v_scale=v_scale
    )  # fmt: skip
    out.copy_(found.flatten(1))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    real, imag, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = torch.cat((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)

"""Layers that more than one part of a model uses."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

LAYER_NORM_EPS = 1e-5
"""Moondream uses PyTorch's default in the vision tower too, where SigLIP itself has 1e-6."""


class Attention(Protocol):
    """How queries meet keys and values: the seam between a model and its key/value cache.

    A model hands over what one layer computed; the callee stores keys and values where it keeps them, applies its
    mask, and returns what the queries see. Training, the plain engine and the paged engine differ only here.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend.

        Args:
            layer: index of the decoder block.
            q: queries, ``[B, T, H, D]``, rotated.
            k: keys of the same positions, ``[B, T, H_kv, D]``, rotated.
            v: values, ``[B, T, H_kv, D]``.

        Returns:
            ``[B, T, H, D]``.
        """
        ...


class MaskedAttention:
    """Attention within one batch of whole sequences, without a cache: what training uses.

    Args:
        mask: what a query (row) may see (column), bool ``[T, T]`` or anything that broadcasts to ``[B, H, T, T]``;
            None lets everything see everything.
    """

    def __init__(self, mask: Tensor | None = None) -> None:
        self.mask = mask

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; see :class:`Attention`."""
        return attend(q, k, v, self.mask)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention with heads in the third dimension.

    Args:
        q: ``[B, T, H, D]``.
        k: ``[B, S, H_kv, D]``; every ``H / H_kv`` query heads share one.
        v: ``[B, S, H_kv, D]``.
        mask: bool, True where a query may look, broadcastable to ``[B, H, T, S]``; None for everywhere.

    Returns:
        ``[B, T, H, D]``; the scale is ``1 / sqrt(D)``.
    """
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


class MLP(nn.Module):
    """``fc2(gelu(fc1(x)))`` with the tanh approximation of GELU."""

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim_in, dim_hidden)
        self.fc2 = nn.Linear(dim_hidden, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., dim_in]`` to ``[..., dim_out]``."""
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


def layer_norm(dim: int) -> nn.LayerNorm:
    """Give the layer norm of every Moondream module: weight, bias and eps 1e-5."""
    return nn.LayerNorm(dim, eps=LAYER_NORM_EPS)


def rotary_table(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary position embedding, always in float32.

    The angle of pair ``i`` at position ``p`` is ``p * theta ** (-2 i / rotary_dim)`` (Su et al., 2021, RoFormer).

    Args:
        positions: integers, ``[T]`` or ``[B, T]``.
        rotary_dim: how many dimensions of a head are rotated; even.
        theta: the base.

    Returns:
        cos and sin, ``[..., T, 1, rotary_dim / 2]``: the 1 is for the heads.
    """
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device) / rotary_dim
    angle = positions.float()[..., None, None] * theta**-exponent
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dimensions of every head, half-split (NeoX) layout; the others pass through.

    Args:
        x: queries or keys, ``[B, T, H, D]``.
        cos: from :func:`rotary_table`.
        sin: from :func:`rotary_table`.

    Returns:
        ``[B, T, H, D]`` in the type of `x`; the arithmetic is float32.
    """
    half = cos.shape[-1]
    real, imag, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = torch.cat((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return torch.cat((rotated.to(x.dtype), rest), dim=-1)

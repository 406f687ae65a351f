"""Layers that several parts of a model use."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.kernels.reference.attention import ScoreRule

LAYER_NORM_EPS = 1e-5  # Moondream uses PyTorch's default in the vision tower too, where SigLIP itself has 1e-6


class Attention(Protocol):
    """The interface between a model and its KV cache: stores one layer's keys and values, masks and attends.

    Training, the reference runner and the paged runner differ only here.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        """Map rotated q ``[B, T, H, D]`` and rotated k, and v, ``[B, T, H_kv, D]``, to ``[B, T, H, D]``."""


class MaskedAttention:
    """Attention without a cache; bool `mask`, broadcastable to ``[B, H, T, T]``, is True where a query may attend."""

    def __init__(self, mask: Tensor | None = None) -> None:
        self.mask = mask

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        return attend(q, k, v, self.mask, rule)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, rule: ScoreRule | None = None) -> Tensor:
    """Attend with q ``[B, T, H, D]``, k and v ``[B, S, H_kv, D]``, and a bool mask of ``[B, H, T, S]``.

    The mask has what the rule's window hides already.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if rule is not None:
        return rule.attend(q, k, v, mask).transpose(1, 2)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


class MLP(nn.Module):
    """``fc2(gelu(fc1(x)))`` with the tanh approximation of GELU."""

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim_in, dim_hidden)
        self.fc2 = nn.Linear(dim_hidden, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class SelfAttention(nn.Module):
    """Fused QKV projection, attention of any kind, output projection."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * self.head_dim)
        self.proj = nn.Linear(dim, dim)

    @property
    def in_features(self) -> int:
        return self.qkv.in_features

    def forward(self, x: Tensor, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Map x ``[B, T, dim]`` to the same shape; `attention` maps q ``[B, T, H, D]`` and k, v to ``[B, T, H, D]``."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [B, T, H + 2 H_kv, D]
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        return self.proj(attention(q, k, v).flatten(2))


class RMSNorm(nn.Module):
    """``weight * x / rms(x)``, normalised in float32 at least, rounded before the weight as the public models do."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normalized.to(x.dtype)


def layer_norm(dim: int) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=LAYER_NORM_EPS)


def rotary_table(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, float32 ``[..., T, 1, rotary_dim / 2]`` (1 for the heads), at positions ``[..., T]``.

    The angle of pair ``i`` at position ``p`` is ``p * theta ** (-2 i / rotary_dim)`` (Su et al., 2021, RoFormer).
    """
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device) / rotary_dim
    angle = positions.float()[..., None, None] * theta**-exponent
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dimensions of every head of x ``[B, T, H, D]``, half-split (NeoX) layout, in float32."""
    half = cos.shape[-1]
    real, imag, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = torch.cat((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return torch.cat((rotated.to(x.dtype), rest), dim=-1)

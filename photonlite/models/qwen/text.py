"""The text decoder: pre-norm attention and gated MLP, grouped queries, rotary embedding on three axes.

```
x ── norm ── q, k, v ──[norms of q, k]── rotate ── attention ── (+) ── norm ── silu(gate) * up ── down ── (+)
```

q, k and v are one product, and so are gate and up: their weights are joined when they are loaded. Features of deepstack
are added behind the first layers, at the positions of images.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.models.layers import Attention, RMSNorm, rotate
from photonlite.models.qwen.config import TextConfig, Version


class TextAttention(nn.Module):
    """Joined projection of q, k and v, with biases or with norms of q and k, attention, output projection."""

    def __init__(self, config: TextConfig, version: Version) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = nn.Linear(config.dim, rows, bias=not version.newer)
        self.proj = nn.Linear(self.heads * self.head_dim, config.dim, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps) if version.newer else None
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps) if version.newer else None

    def forward(self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [B, T, H + 2 H_kv, D]
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.proj(attention(layer, rotate(q, *rotary), rotate(k, *rotary), v).flatten(2))


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``; gate and up are one product."""

    def __init__(self, dim: int, ff_dim: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * ff_dim, bias=bias)
        self.down = nn.Linear(ff_dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class DecoderBlock(nn.Module):
    """One decoder layer."""

    def __init__(self, config: TextConfig, version: Version, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.norm1 = RMSNorm(config.dim, config.norm_eps)
        self.attn = TextAttention(config, version)
        self.norm2 = RMSNorm(config.dim, config.norm_eps)
        self.mlp = GatedMLP(config.dim, config.ff_dim)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        x = x + self.attn(self.layer, self.norm1(x), rotary, attention)
        return x + self.mlp(self.norm2(x))


class TextDecoder(nn.Module):
    """Maps embeddings to raw hidden states, and these to logits."""

    def __init__(self, config: TextConfig, version: Version) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(DecoderBlock(config, version, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, deepstack: Tensor | None = None) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[3, B, T]`` or ``[3, T]`` to hidden states before the norm.

        Row ``i`` of `deepstack`, ``[D, B, T, dim]``, is added behind layer ``i``; it is 0 where there is no image.
        """
        rotary = rotary_table(positions, self.config)
        for index, block in enumerate(self.blocks):
            x = block(x, rotary, attention)
            if deepstack is not None and index < len(deepstack):
                x = x + deepstack[index]
        return x

    @torch.no_grad()
    def kv_statistics(self) -> tuple[tuple[float, float], ...]:
        """Estimate the root mean square of each layer's keys and values; see `models.base.Model`.

        An RMS norm gives ``gamma * z`` with `z` of mean square 1. If its entries are independent with mean 0, row `i`
        of ``W x + b`` has the mean square ``sum_j (W_ij gamma_j)**2 + b_i**2``; behind a norm of keys it is that of
        the norm's weight.
        """
        statistics = []
        for block in (block for block in self.blocks if isinstance(block, DecoderBlock)):
            qkv, rows = block.attn.qkv, block.attn.kv_heads * block.attn.head_dim
            square = qkv.weight[-2 * rows :].float().square() @ block.norm1.weight.float().square()  # keys, then values
            if qkv.bias is not None:
                square = square + qkv.bias[-2 * rows :].float().square()
            means = square.view(2, rows).mean(dim=1)
            if block.attn.k_norm is not None:
                means[0] = block.attn.k_norm.weight.float().square().mean()
            statistics.append(means.sqrt())
        return tuple((key, value) for key, value in torch.stack(statistics).tolist())

    def logits(self, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        return functional.linear(normed, self.words) if self.head is None else self.head(normed)


def rotary_axes(config: TextConfig) -> list[int]:
    """Return the axis of positions (0 time, 1 height, 2 width) that each of half a head's frequencies follows."""
    time, height, width = config.sections
    if not config.interleaved:
        return [0] * time + [1] * height + [2] * width
    axes = [0] * sum(config.sections)
    for axis, count in ((1, height), (2, width)):
        axes[axis : 3 * count : 3] = [axis] * count
    return axes


@functools.cache  # a CUDA graph must not copy it from the host
def axes_on(config: TextConfig, device: torch.device) -> Tensor:
    """Return :func:`rotary_axes` as int32 on a device."""
    return torch.tensor(rotary_axes(config), dtype=torch.int32, device=device)


def rotary_table(positions: Tensor, config: TextConfig) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, float32 ``[..., T, 1, head_dim / 2]``, at positions ``[3, ..., T]``."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponent  # rounds as the public code does
    angle = positions.movedim(0, -1).float()[..., axes_on(config, positions.device)] * frequencies
    return angle.cos().unsqueeze(-2), angle.sin().unsqueeze(-2)

"""The text decoder: parallel attention and MLP behind one layer norm, partial rotary embedding.

```
x ── ln ─┬─ attention ─┐
│        └─ mlp ───────┤
└──────────────────── (+) ── next block ... ── post_ln ── lm_head
                              raw hidden (the region heads read this)
```
"""

import torch
from torch import Tensor, nn

from photonlite.models.layers import MLP, Attention, layer_norm, rotary_table, rotate
from photonlite.models.moondream.config import TextConfig


class SelfAttention(nn.Module):
    """Fused QKV projection, rotary embedding, attention through the caller's cache, output projection."""

    def __init__(self, config: TextConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.n_heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(config.dim, (self.heads + 2 * self.kv_heads) * self.head_dim)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        """Map ``[B, T, dim]`` to ``[B, T, dim]``."""
        q, k, v = (
            self.qkv(x).unflatten(-1, (-1, self.head_dim)).split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        )  # q: [B, T, H, D]; k, v: [B, T, H_kv, D]
        out = attention(self.layer, rotate(q, *rotary), rotate(k, *rotary), v)
        return self.proj(out.flatten(2))


class Block(nn.Module):
    """One decoder block: both branches read the same normalised input."""

    def __init__(self, config: TextConfig, layer: int) -> None:
        super().__init__()
        self.ln = layer_norm(config.dim)
        self.attn = SelfAttention(config, layer)
        self.mlp = MLP(config.dim, config.ff_dim, config.dim)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        """Map ``[B, T, dim]`` to ``[B, T, dim]``; attention is added before the MLP, as the reference rounds."""
        n = self.ln(x)
        return x + self.attn(n, rotary, attention) + self.mlp(n)


class TextDecoder(nn.Module):
    """Embeddings in, raw hidden states out; logits on request."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.post_ln = layer_norm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids ``[...]`` as ``[..., dim]``."""
        return nn.functional.embedding(ids, self.wte)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run the blocks.

        Args:
            x: input embeddings, ``[B, T, dim]``.
            positions: of those embeddings, ``[T]`` or ``[B, T]``; BOS is 0, the image follows.
            attention: mask and cache.

        Returns:
            The raw hidden states before the final norm, ``[B, T, dim]``: the region heads read these.
        """
        rotary = rotary_table(positions, self.config.rotary_dim, self.config.rope_theta)
        for block in self.blocks:
            x = block(x, rotary, attention)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits ``[..., vocab]``."""
        return self.lm_head(self.post_ln(hidden))

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

from photonlite.models.layers import MLP, Attention, SelfAttention, layer_norm, rotary_table, rotate
from photonlite.models.moondream.config import TextConfig


class DecoderBlock(nn.Module):
    """One decoder block: both branches read the same normalised input."""

    def __init__(self, config: TextConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.ln = layer_norm(config.dim)
        self.attn = SelfAttention(config.dim, config.n_heads, config.kv_heads)
        self.mlp = MLP(config.dim, config.ff_dim, config.dim)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(self.layer, rotate(q, *rotary), rotate(k, *rotary), v)

        n = self.ln(x)  # [B, T, dim]
        return x + self.attn(n, attend) + self.mlp(n)  # in this order, as the reference rounds


class TextDecoder(nn.Module):
    """Maps embeddings to raw hidden states, and these to logits."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.rotary_dim, self.rope_theta = config.rotary_dim, config.rope_theta
        self.wte = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.n_layers))
        self.post_ln = layer_norm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to hidden states before the final norm."""
        rotary = rotary_table(positions, self.rotary_dim, self.rope_theta)
        for block in self.blocks:
            x = block(x, rotary, attention)
        return x

    @torch.no_grad()
    def kv_statistics(self) -> tuple[tuple[float, float], ...]:
        """Estimate the root mean square of each layer's keys and values; see `models.base.Model`.

        A layer norm gives ``gamma * z + beta`` with `z` of mean 0 and variance 1. If its entries are independent,
        row `i` of ``W x + b`` has mean ``sum_j W_ij beta_j + b_i`` and variance ``sum_j (W_ij gamma_j)**2``. The mean
        square is the mean over rows of ``mean**2 + variance``, which rotary embedding does not change.
        """
        statistics = []
        for block in (block for block in self.blocks if isinstance(block, DecoderBlock)):
            norm, qkv, rows = block.ln, block.attn.qkv, block.attn.kv_heads * block.attn.head_dim
            weight, bias = qkv.weight[-2 * rows :].float(), qkv.bias[-2 * rows :].float()  # of keys, then of values
            mean = weight @ norm.bias.float() + bias
            square = mean.square() + weight.square() @ norm.weight.float().square()  # [2 rows]
            statistics.append(square.view(2, rows).mean(dim=1).sqrt())
        return tuple((key, value) for key, value in torch.stack(statistics).tolist())

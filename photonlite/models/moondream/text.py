"""The text decoder: parallel attention and MLP behind one layer norm, partial rotary embedding.

Moondream 3 scales queries and values before the rotation, and has experts in place of the MLP of later blocks.

```
x ── ln ─┬─ attention ─┐
│        └─ mlp ───────┤
└──────────────────── (+) ── next block ... ── post_ln ── lm_head
                              raw hidden (the region heads read this)
```
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.models.layers import MLP, Attention, SelfAttention, layer_norm, rotary_table, rotate
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.experts import MixtureMLP


class Temperature(nn.Module):
    """Factors of each head's query and value ("tau"), learned from the block's projections and from the position.

    ```
    tanh(w_h . gelu(qkv)) + 1/2 + sigmoid(alpha_h ln(position + 1))
    ```
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.wq, self.wv = (nn.Parameter(torch.empty(config.n_heads, 3 * config.dim)) for _ in range(2))
        self.alpha = nn.Parameter(torch.empty(config.n_heads))
        self.gelu = "tanh" if config.tau_gelu == "tanh" else "none"
        self.wide_positions = config.tau_positions == "float32"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Scale queries and values, ``[B, T, H, D]`` each, at positions ``[T]`` or ``[B, T]``."""
        features = functional.gelu(torch.cat((q, k, v), dim=2).flatten(2), approximate=self.gelu)
        place = self.of_positions(positions)
        factors = (functional.linear(features, weight).tanh() + place for weight in (self.wq, self.wv))
        of_q, of_v = (factor[..., None] for factor in factors)
        return q * of_q, v * of_v

    def of_positions(self, positions: Tensor) -> Tensor:
        """Return the share of positions ``[...]`` in the factors, ``[..., H]``."""
        alpha = self.alpha.float() if self.wide_positions else self.alpha
        logs = (positions.to(alpha.dtype) + 1).log()
        return (1 + (torch.sigmoid(logs[..., None] * alpha) - 0.5)).to(self.alpha.dtype)


class DecoderAttention(SelfAttention):
    """Self-attention of a decoder block, with temperatures where the configuration says so."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__(config.dim, config.n_heads, config.kv_heads)
        self.tau = Temperature(config) if config.tau else None


class DecoderBlock(nn.Module):
    """One decoder block: both branches read the same normalised input."""

    def __init__(self, config: TextConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.ln = layer_norm(config.dim)
        self.attn = DecoderAttention(config)
        self.mlp = (
            MLP(config.dim, config.ff_dim, config.dim)
            if config.moe is None or layer < config.moe.start_layer
            else MixtureMLP(config.dim, config.moe)
        )

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], positions: Tensor, attention: Attention) -> Tensor:
        of_attention, of_mlp = self.branches(x, rotary, positions, attention)
        return x + of_attention + of_mlp  # in this order, as the reference rounds

    def branches(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        """Return what attention and MLP add to the stream."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.attn.tau is not None:
                q, v = self.attn.tau(q, k, v, positions)
            return attention(self.layer, rotate(q, *rotary), rotate(k, *rotary), v)

        n = self.ln(x)  # [B, T, dim]
        return self.attn(n, attend), self.mlp(n)


class TextDecoder(nn.Module):
    """Maps embeddings to raw hidden states, and these to logits."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.rotary_dim, self.rope_theta = config.rotary_dim, config.rope_theta
        self.is_mixture = config.tau or config.moe is not None  # temperatures or experts: other fused kernels
        self.wte = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.n_layers))
        self.post_ln = layer_norm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to hidden states before the final norm."""
        rotary = rotary_table(positions, self.rotary_dim, self.rope_theta)
        for block in self.blocks:
            x = block(x, rotary, positions, attention)
        return x

    @torch.no_grad()
    def kv_statistics(self) -> tuple[tuple[float, float], ...]:
        """Estimate the root mean square of each layer's keys and values; see `models.base.Model`.

        A layer norm gives ``gamma * z + beta`` with `z` of mean 0 and variance 1. If its entries are independent,
        row `i` of ``W x + b`` has mean ``sum_j W_ij beta_j + b_i`` and variance ``sum_j (W_ij gamma_j)**2``. The mean
        square is the mean over rows of ``mean**2 + variance``, which rotary embedding does not change. Temperatures of
        values, at most 2.5, are left out.
        """
        statistics = []
        for block in (block for block in self.blocks if isinstance(block, DecoderBlock)):
            norm, qkv, rows = block.ln, block.attn.qkv, block.attn.kv_heads * block.attn.head_dim
            weight, bias = qkv.weight[-2 * rows :].float(), qkv.bias[-2 * rows :].float()  # of keys, then of values
            mean = weight @ norm.bias.float() + bias
            square = mean.square() + weight.square() @ norm.weight.float().square()  # [2 rows]
            statistics.append(square.view(2, rows).mean(dim=1).sqrt())
        return tuple((key, value) for key, value in torch.stack(statistics).tolist())

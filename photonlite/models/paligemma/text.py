"""The text decoder, Gemma 2: norms in front of each part and behind it, soft caps, sliding layers.

```
x ── norm ── q, k, v ── rotate ── attention ── norm ── (+) ── norm ── gelu(gate) * up ── down ── norm ── (+)
```

Embeddings of words are multiplied by the root of their size, rounded to the type of the weights; those of images are
not. The head is the embedding.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.kernels.reference.attention import ScoreRule
from photonlite.models.layers import Attention, rotary_table, rotate
from photonlite.models.paligemma.config import TextConfig

FIRST_POSITION = 1  # rotary positions count from here


class Norm(nn.Module):
    """``(1 + weight) * x / rms(x)``, in float32 at least and rounded once, as the public model does."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normalized * (1 + self.weight.to(wide.dtype))).to(x.dtype)


class DecoderBlock(nn.Module):
    """One decoder layer."""

    def __init__(self, config: TextConfig, layer: int) -> None:
        super().__init__()
        dim, heads, kv_heads, size = config.dim, config.heads, config.kv_heads, config.head_dim
        self.layer, self.head_dim = layer, size
        window = config.window if config.sliding[layer] else None
        self.rule = ScoreRule(config.query_scalar**-0.5, config.attention_cap, window)
        self.norm_in, self.norm_attended, self.norm_mlp, self.norm_out = (Norm(dim, config.norm_eps) for _ in range(4))
        self.q, self.k, self.v = (nn.Linear(dim, n * size, bias=False) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(heads * size, dim, bias=False)
        self.gate, self.up = (nn.Linear(dim, config.ff_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(config.ff_dim, dim, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        y = self.norm_in(x)
        q, k, v = (part(y).unflatten(-1, (-1, self.head_dim)) for part in (self.q, self.k, self.v))
        attended = attention(self.layer, rotate(q, *rotary), rotate(k, *rotary), v, self.rule)
        x = x + self.norm_attended(self.out(attended.flatten(2)))
        y = self.norm_mlp(x)
        y = self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y))
        return x + self.norm_out(y)


class TextDecoder(nn.Module):
    """Maps embeddings to raw hidden states, and these to logits; created without values."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.layers))
        self.norm = Norm(config.dim, config.norm_eps)
        self.head: nn.Module | None = None  # a quantised copy of the embedding; None for the embedding itself

    def embed(self, ids: Tensor) -> Tensor:
        scale = torch.tensor(self.config.dim**0.5, dtype=self.words.dtype).item()  # on the host: nothing waits
        return functional.embedding(ids, self.words) * scale

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to hidden states before the norm."""
        rotary = rotary_table(positions + FIRST_POSITION, self.config.head_dim, self.config.rope_theta)
        for block in self.blocks:
            x = block(x, rotary, attention)
        return x

    def logits(self, hidden: Tensor, first: int = 0, count: int | None = None) -> Tensor:
        """Map raw hidden states to logits of some ids, all unless given."""
        normed, cap = self.norm(hidden), self.config.logit_cap
        if count is None and self.head is not None:
            logits = self.head(normed)
        else:
            logits = functional.linear(normed, self.words[first : None if count is None else first + count])
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @torch.no_grad()
    def kv_statistics(self) -> tuple[tuple[float, float], ...]:
        """Estimate the root mean square of each layer's keys and values; see `models.base.Model`.

        A norm gives ``g * z`` with `z` of mean square 1. If its entries are independent with mean 0, row `i` of ``W x``
        has the mean square ``sum_j (W_ij g_j)**2``.
        """
        found = []
        for block in (block for block in self.blocks if isinstance(block, DecoderBlock)):
            gain = (1 + block.norm_in.weight.float()).square()
            found.append([(part.weight.float().square() @ gain).mean().sqrt().item() for part in (block.k, block.v)])
        return tuple((key, value) for key, value in found)

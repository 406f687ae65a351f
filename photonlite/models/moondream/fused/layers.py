"""Weights packed for fused kernels; linear layers over rows, with residual addition and norm between two of them.

```
FP8   x ────────────── + bias, rounded ─> x         else   x ───────┐
      rows ─ product ──┘       └─ norm ─> rows             rows ─ product, + ──────────────> x
                                                                       └─ + biases ─ norm ─> rows
```

Where the product itself adds to the residual stream, the norm reads one tensor instead of two and writes one instead of
two (the gain is in `bench/results/gpu-notes.md`). The stream then lacks biases: the same numbers in every row, known
beforehand, which every norm adds to its input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from photonlite.kernels.experts import experts_in, experts_out, route
from photonlite.kernels.norms import shifted_norm
from photonlite.kernels.reference.experts import ExpertWeight
from photonlite.models.fused_layers import Linear, Norm, Rows, WideLinear
from photonlite.models.moondream.experts import MixtureMLP
from photonlite.models.moondream.text import DecoderBlock, TextDecoder


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """A block's experts, each of whose matrices is one tensor already."""

    inward: ExpertWeight  # [E, 2 I, dim]
    outward: ExpertWeight  # [E, dim, I]
    rank_count: int  # experts of a row

    def __call__(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Map rows ``[T, dim]`` with logits of the router ``[T, E]`` to shares of their results, ``[T, K, dim]``."""
        routes = route(logits, self.rank_count)
        return experts_out(experts_in(rows, routes, self.inward), routes, self.outward)


@dataclass(frozen=True, slots=True)
class PackedTemperature:
    """What a block's queries and values are scaled by; see `models.moondream.text.Temperature`."""

    weight: Tensor  # [2 H, 3 dim]: rows for queries, then for values
    alpha: Tensor  # [H]
    tanh_gelu: bool


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A decoder block's weights as two matrices instead of four; the block's parameters become views of them.

    Where there are experts, the first matrix has the router in place of fc1, and the second one is that of attention.
    """

    w_in: Tensor  # [(H + 2 H_kv) D + ff, dim]: q, k, v, fc1
    b_in: Tensor  # [(H + 2 H_kv) D + ff]
    w_out: Tensor  # [dim, H D + ff]: attention, fc2
    b_out: Tensor  # [dim]: the biases of both output layers, summed in float32 at least
    ln_weight: Tensor  # [dim]
    ln_bias: Tensor  # [dim]
    eps: float
    experts: PackedExperts | None = None
    tau: PackedTemperature | None = None

    @property
    def norm(self) -> tuple[Tensor, Tensor, float]:
        return self.ln_weight, self.ln_bias, self.eps


def pack_blocks(text: TextDecoder) -> tuple[PackedBlock, ...]:
    """Pack the blocks of a decoder in evaluation mode, one by one: at most one block's weights exist twice."""
    return tuple(_pack(block) for block in text.blocks if isinstance(block, DecoderBlock))


@torch.no_grad()
def _pack(block: DecoderBlock) -> PackedBlock:
    attn, mlp = block.attn, block.mlp
    qkv, proj = attn.qkv, attn.proj
    inward = mlp.router if isinstance(mlp, MixtureMLP) else mlp.fc1
    w_in = torch.cat((qkv.weight, inward.weight))
    b_in = torch.cat((qkv.bias, inward.bias))
    rows, columns = len(qkv.weight), proj.weight.shape[1]
    _share(qkv, w_in[:rows], b_in[:rows])
    _share(inward, w_in[rows:], b_in[rows:])
    wide = torch.promote_types(proj.bias.dtype, torch.float32)
    w_out, b_out, experts = proj.weight.detach(), proj.bias.detach().to(wide), None
    if isinstance(mlp, MixtureMLP):
        experts = PackedExperts(mlp.fc1.stored, mlp.fc2.stored, mlp.rank_count)
    else:
        w_out = torch.cat((proj.weight, mlp.fc2.weight), dim=1)
        _share(proj, w_out[:, :columns], proj.bias)
        _share(mlp.fc2, w_out[:, columns:], mlp.fc2.bias)
        b_out = (b_out + mlp.fc2.bias.to(wide)).detach()
    tau = None
    if attn.tau is not None:
        tau = PackedTemperature(torch.cat((attn.tau.wq, attn.tau.wv)), attn.tau.alpha.detach(), attn.tau.gelu == "tanh")
    norm = block.ln.weight.detach(), block.ln.bias.detach(), block.ln.eps
    return PackedBlock(w_in, b_in, w_out, b_out, *norm, experts, tau)


def _share(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias.detach(), requires_grad=False)


@dataclass(frozen=True, slots=True)
class Join:
    """A linear layer into the residual stream, and the norm behind it, which adds the product and `bias`.

    With `in_place` the product adds itself, and the stream then lacks `bias`.
    """

    linear: Linear
    bias: Tensor
    norm: Norm
    in_place: bool

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return the stream ``[T, N]`` after `x`, and its norm as rows."""
        if self.in_place and isinstance(self.linear, WideLinear):
            self.linear.add_to(x, rows)
            return x, (shifted_norm(x, self.bias, self.norm.weight, self.norm.bias, self.norm.eps),)
        return self.norm(x, self.linear(rows), self.bias)


def join_layers(
    linears: Sequence[Linear], biases: Sequence[Tensor], norms: Sequence[Norm]
) -> tuple[list[Join], list[Tensor]]:
    """Join layers without biases of their own to a residual stream; the first join leaves its input unchanged.

    `biases` ``[N]`` and `norms` belong to the layers in order; there may be more biases, of layers that are not joined.
    Returns the joins, and after each bias the sum that must be added to the stream to complete it.
    """
    adding = all(isinstance(linear, WideLinear) for linear in linears)
    lacking = list(biases)
    if adding and len(biases) > 1:
        wide = torch.promote_types(biases[0].dtype, torch.float32)
        lacking[1:] = accumulate(bias.to(wide) for bias in biases[1:])
    parts = enumerate(zip(linears, lacking, norms, strict=False))
    return [Join(*part, in_place=adding and index > 0) for index, part in parts], lacking

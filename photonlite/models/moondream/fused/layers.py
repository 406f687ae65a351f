"""Weights of decoder blocks packed for fused kernels."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from photonlite.kernels.experts import experts_in, experts_out, route
from photonlite.kernels.quantised import Weight
from photonlite.kernels.reference.experts import ExpertWeight
from photonlite.kernels.reference.quantised import columns_of, join_columns, join_rows
from photonlite.models.moondream.experts import MixtureMLP
from photonlite.models.moondream.text import DecoderBlock, TextDecoder
from photonlite.models.quantised import QuantisedLinear


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

    w_in: Weight  # [(H + 2 H_kv) D + ff, dim]: q, k, v, fc1
    b_in: Tensor  # [(H + 2 H_kv) D + ff]
    w_out: Weight  # [dim, H D + ff]: attention, fc2
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
    if isinstance(qkv, QuantisedLinear):
        return _pack_quantised(block)
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


def _pack_quantised(block: DecoderBlock) -> PackedBlock:
    """Pack a block without experts and temperatures, all of whose linear layers are quantised."""
    qkv, proj, fc1, fc2 = (
        cast(QuantisedLinear, layer) for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    )
    w_in, w_out = join_rows([qkv.stored, fc1.stored]), join_columns([proj.stored, fc2.stored])
    rows, columns = qkv.out_features, proj.in_features
    qkv.share(w_in[:rows])
    fc1.share(w_in[rows:])
    proj.share(columns_of(w_out, 0, columns))
    fc2.share(columns_of(w_out, columns, w_out.shape[1]))
    biases = [layer.bias.detach() for layer in (qkv, fc1, proj, fc2) if layer.bias is not None]
    wide = torch.promote_types(biases[0].dtype, torch.float32)
    b_in, b_out = torch.cat(biases[:2]), biases[2].to(wide) + biases[3].to(wide)
    return PackedBlock(w_in, b_in, w_out, b_out, block.ln.weight.detach(), block.ln.bias.detach(), block.ln.eps)


def _share(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias.detach(), requires_grad=False)

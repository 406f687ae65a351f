"""Weights of decoder blocks as fused kernels take them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from photonlite.kernels.reference.attention import ScoreRule
from photonlite.models.layers import rotary_table
from photonlite.models.paligemma.config import TextConfig
from photonlite.models.paligemma.text import FIRST_POSITION, DecoderBlock, Norm, TextDecoder


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A decoder block's weights; those of norms are float32 at least, 1 included."""

    gain_in: Tensor  # [dim], as the other three
    w_qkv: Tensor  # [(H + 2 H_kv) D, dim]
    w_out: Tensor  # [dim, H D]
    gain_attended: Tensor
    gain_mlp: Tensor
    w_gate_up: Tensor  # [2 ff, dim], gates first
    w_down: Tensor  # [dim, ff]
    gain_out: Tensor
    eps: float  # of all norms
    rule: ScoreRule  # without a window: none ends within the context


def block_weights(text: TextDecoder) -> tuple[BlockWeights, ...]:
    return tuple(_weights(block) for block in text.blocks if isinstance(block, DecoderBlock))


def rotary_rows(config: TextConfig, device: torch.device) -> Tensor:
    """Return cosines and sines of every position of the context, float32 ``[2, positions, D / 2]``."""
    positions = torch.arange(config.max_context, device=device) + FIRST_POSITION
    return torch.stack(rotary_table(positions, config.head_dim, config.rope_theta)).squeeze(2).contiguous()


def _weights(block: DecoderBlock) -> BlockWeights:
    return BlockWeights(
        gain_in=_gain(block.norm_in),
        w_qkv=joined(block.q, block.k, block.v),
        w_out=block.out.weight.detach(),
        gain_attended=_gain(block.norm_attended),
        gain_mlp=_gain(block.norm_mlp),
        w_gate_up=joined(block.gate, block.up),
        w_down=block.down.weight.detach(),
        gain_out=_gain(block.norm_out),
        eps=block.norm_in.eps,
        rule=ScoreRule(block.rule.scale, block.rule.softcap),
    )


def _gain(norm: Norm) -> Tensor:
    wide = torch.promote_types(norm.weight.dtype, torch.float32)
    return 1 + norm.weight.detach().to(wide)


def joined(*layers: nn.Linear) -> Tensor:
    """Join the weights of layers that read the same; the layers keep views of the whole, so that it is there once."""
    whole = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, torch.split(whole, [len(layer.weight) for layer in layers]), strict=True):
        layer.weight.data = part
    return whole

"""Weights of decoder blocks as fused kernels take them: those of the plain modules, which are joined already."""

from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.kernels.quantised import Weight
from photonlite.kernels.reference.attention import HeadNorms
from photonlite.kernels.row_adapters import RowTerm
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.quantised import stored_weight
from photonlite.models.qwen.config import TextConfig
from photonlite.models.qwen.text import DecoderBlock, TextDecoder, rotary_table


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A decoder block's weights; linear layers without a bias have none."""

    gain_in: Tensor  # [dim]: weight of the RMS norm in front of attention
    w_qkv: Weight  # [(H + 2 H_kv) D, dim]
    b_qkv: Tensor | None  # [(H + 2 H_kv) D]
    norms: HeadNorms | None  # of queries and keys
    w_proj: Weight  # [dim, H D]
    gain_mlp: Tensor  # [dim]: weight of the RMS norm in front of the MLP
    w_gate_up: Weight  # [2 ff, dim], gates first
    w_down: Weight  # [dim, ff]
    eps: float  # of both norms


def block_weights(text: TextDecoder) -> tuple[BlockWeights, ...]:
    return tuple(_weights(block) for block in text.blocks if isinstance(block, DecoderBlock))


def _weights(block: DecoderBlock) -> BlockWeights:
    attn, mlp = block.attn, block.mlp
    norms = None
    if attn.q_norm is not None and attn.k_norm is not None:
        norms = attn.q_norm.weight.detach(), attn.k_norm.weight.detach(), attn.q_norm.eps
    return BlockWeights(
        gain_in=block.norm1.weight.detach(),
        w_qkv=stored_weight(attn.qkv),
        b_qkv=None if attn.qkv.bias is None else attn.qkv.bias.detach(),
        norms=norms,
        w_proj=stored_weight(attn.proj),
        gain_mlp=block.norm2.weight.detach(),
        w_gate_up=stored_weight(mlp.gate_up),
        w_down=stored_weight(mlp.down),
        eps=block.norm1.eps,
    )


def row_terms(bank: AdapterBank, layer: str) -> list[RowTerm]:
    """Return the terms that a bank has places for now at a layer, whose ``A x`` stand beside each other."""
    return [RowTerm(stack, bank.rank * number, 0, stack.first) for number, stack in enumerate(bank.stacks(layer))]


def rotary_rows(config: TextConfig, device: torch.device) -> Tensor:
    """Return cosines and sines of every position of the context, float32 ``[2, positions, D / 2]``."""
    positions = torch.arange(config.max_context, device=device).expand(3, -1)
    return torch.stack(rotary_table(positions, config)).squeeze(2).contiguous()

"""The decoder in decode steps: one position a row, seven kernels a block.

```
x ─┬─ norm_in, w_qkv ── rotary, write, capped attention ── w_out ── norm_attended, + x ─┐
   ┌──────────────────────────────────────────────────────────────────────────────────────┘
   └─ norm_mlp, w_gate_up, GeGLU ── w_down ── norm_out, + x ── norm_in of the next block
```

A norm behind a product is part of the addition behind it, and the one in front of the next product too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from photonlite.kernels import cards
from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.norms import add_normed, residual_norm
from photonlite.kernels.reference.attention import ScoreRule
from photonlite.kernels.small_batch_gemm import linear_into
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.layers import rotary_table
from photonlite.models.paligemma.config import TextConfig
from photonlite.models.paligemma.text import FIRST_POSITION, DecoderBlock, Norm, TextDecoder
from photonlite.models.quantised import obstacle


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
    rule: ScoreRule


class FusedDecode:
    """Computes decode steps with the weights of a decoder's blocks; see `models.base.StepDecoder`."""

    def __init__(self, blocks: Sequence[BlockWeights], rotary: Tensor) -> None:
        self._blocks = blocks
        self._rotary = rotary  # [2, positions, D / 2]

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        count, block = len(x), self._blocks[0]
        sizes = len(block.w_qkv), block.w_out.shape[1], block.w_down.shape[1]
        qkv, attended, inside = (x.new_empty(count, size) for size in sizes)
        delta, normal = torch.empty_like(x), residual_norm(x, None, None, block.gain_in, None, block.eps)[1]
        for index, block in enumerate(self._blocks):
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            linear_into(qkv, normal, block.w_qkv, None)
            decode_attention(
                qkv, self._rotary, keys, values, rows.table, rows.positions, rows.slots, attended,
                turns=rows.turns, k_scale=k_scale, v_scale=v_scale, rule=block.rule,
            )  # fmt: skip
            linear_into(delta, attended, block.w_out, None)
            add_normed(x, delta, block.gain_attended, block.gain_mlp, block.eps, normal)
            linear_into(inside, normal, block.w_gate_up, None, gated=True, gelu=True)
            linear_into(delta, inside, block.w_down, None)
            following = self._blocks[index + 1].gain_in if index + 1 < len(self._blocks) else None
            add_normed(x, delta, block.gain_out, following, block.eps, normal)
        return x


def step_obstacle(text: TextDecoder) -> str | None:
    """Return what keeps decode steps from fused kernels; float16 has no room for Gemma's activations."""
    config, words = text.config, text.words
    if config.window is not None and any(config.sliding) and config.window < config.max_context:
        return f"the kernel decode_attention sees all of {config.max_context} positions, a layer {config.window}"
    needs = cards.step_needs(config.head_dim, config.heads // config.kv_heads)
    unfit = obstacle(text) or cards.wrong_type(words.dtype, (torch.bfloat16,))
    return unfit or cards.obstacle(cards.card_of(words.device), needs)


def block_weights(text: TextDecoder) -> tuple[BlockWeights, ...]:
    return tuple(_weights(block) for block in text.blocks if isinstance(block, DecoderBlock))


def rotary_rows(config: TextConfig, device: torch.device) -> Tensor:
    """Return cosines and sines of every position of the context, float32 ``[2, positions, D / 2]``."""
    positions = torch.arange(config.max_context, device=device) + FIRST_POSITION
    return torch.stack(rotary_table(positions, config.head_dim, config.rope_theta)).squeeze(2).contiguous()


def _weights(block: DecoderBlock) -> BlockWeights:
    return BlockWeights(
        gain_in=_gain(block.norm_in),
        w_qkv=_joined(block.q, block.k, block.v),
        w_out=block.out.weight.detach(),
        gain_attended=_gain(block.norm_attended),
        gain_mlp=_gain(block.norm_mlp),
        w_gate_up=_joined(block.gate, block.up),
        w_down=block.down.weight.detach(),
        gain_out=_gain(block.norm_out),
        eps=block.norm_in.eps,
        rule=ScoreRule(block.rule.scale, block.rule.softcap),  # no window ends within the context
    )


def _gain(norm: Norm) -> Tensor:
    wide = torch.promote_types(norm.weight.dtype, torch.float32)
    return 1 + norm.weight.detach().to(wide)


def _joined(*layers: nn.Linear) -> Tensor:
    """Join the weights of layers that read the same; the layers keep views of the whole, so that it is there once."""
    whole = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, torch.split(whole, [len(layer.weight) for layer in layers]), strict=True):
        layer.weight.data = part
    return whole

"""The decoder in decode steps: one position a row, seven kernels a block.

```
x ─┬─ norm_in, w_qkv ── rotary, write, capped attention ── w_out ── norm_attended, + x ─┐
   ┌──────────────────────────────────────────────────────────────────────────────────────┘
   └─ norm_mlp, w_gate_up, GeGLU ── w_down ── norm_out, + x ── norm_in of the next block
```

A norm behind a product is part of the addition behind it, and the one in front of the next product too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.norms import add_normed, residual_norm
from photonlite.kernels.small_batch_gemm import linear_into
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.paligemma.fused.layers import BlockWeights


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

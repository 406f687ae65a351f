"""The decoder in decode steps: one position a row, five kernels a block.

```
x ─┬─ norm, w_qkv ── norms, rotary, write, paged attention ── w_proj, + x ─┬─ norm, w_gate_up, SwiGLU ── w_down, + x
   1                 2                                        3            4                             5
```

Norms are part of the products around them: see `kernels.serial_block`.
"""

from collections.abc import Sequence

from torch import Tensor

from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.serial_block import add_linear, empty_scales, norm_linear, scale_stream
from photonlite.kernels.small_batch_gemm import group_of
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.qwen.fused.layers import BlockWeights


class FusedDecode:
    """Computes decode steps with the weights of a decoder's blocks; see `models.base.StepDecoder`."""

    def __init__(self, blocks: Sequence[BlockWeights], rotary: Tensor) -> None:
        self._blocks = blocks
        self._rotary = rotary  # [2, positions, D / 2]

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        count, block = len(x), self._blocks[0]
        dim, width = block.w_proj.shape
        inner = block.w_down.shape[1]
        qkv, attended, inside = (x.new_empty(count, size) for size in (len(block.w_qkv), width, inner))
        into, between = (
            empty_scales(count, dim, size, block.eps, x, group=group_of(weight))
            for size, weight in ((inner, block.w_down), (width, block.w_proj))
        )
        scale_stream(x, block.gain_in, into)
        for index, block in enumerate(self._blocks):
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            norm_linear(into, block.w_qkv, block.b_qkv, qkv)
            decode_attention(
                qkv, self._rotary, keys, values, rows.table, rows.positions, rows.slots, attended,
                turns=rows.turns, norms=block.norms, k_scale=k_scale, v_scale=v_scale,
            )  # fmt: skip
            add_linear(attended, block.w_proj, x, (block.gain_mlp, between))
            norm_linear(between, block.w_gate_up, None, inside, gated=True)
            following = self._blocks[index + 1] if index + 1 < len(self._blocks) else None
            add_linear(inside, block.w_down, x, None if following is None else (following.gain_in, into))
        return x

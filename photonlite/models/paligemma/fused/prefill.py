"""The decoder in prompts: rows of any lengths on one axis, nine kernels a block.

```
x ─┬─ norm_in, w_qkv ── rotary, write ── capped paged attention ── w_out ── norm_attended, + x ─┐
   ┌──────────────────────────────────────────────────────────────────────────────────────────────┘
   └─ norm_mlp, w_gate_up ── GeGLU ── w_down ── norm_out, + x ── norm_in of the next block
```

A norm behind a product is part of the addition behind it, and the one in front of the next product too. The last block
computes keys and values of all positions, and the rest only for each row's last position.
"""

from collections.abc import Sequence

from torch import Tensor

from photonlite.kernels.activations import swiglu
from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.norms import add_normed, residual_norm
from photonlite.kernels.prefill_attention import paged_prefill_attention
from photonlite.kernels.rotary import rotary_gelu_write
from photonlite.models.base import KvPages, PackedPrompts
from photonlite.models.fused_layers import WideLinear
from photonlite.models.paligemma.fused.layers import BlockWeights


class FusedPrefill:
    """Runs prompts with the weights of a decoder's blocks; see `models.base.PromptDecoder`."""

    def __init__(self, blocks: Sequence[BlockWeights], rotary: Tensor) -> None:
        self._blocks = blocks
        self._rotary = rotary  # [2, positions, D / 2]
        self._qkv = [WideLinear(block.w_qkv, None) for block in blocks]
        self._out = [WideLinear(block.w_out, None) for block in blocks]
        self._gate_up = [WideLinear(block.w_gate_up, None) for block in blocks]
        self._down = [WideLinear(block.w_down, None) for block in blocks]
        self._width = blocks[-1].w_out.shape[1]
        self._last_kv = WideLinear(blocks[-1].w_qkv[self._width :], None)

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        x, block = x.clone(), self._blocks[0]
        normal = residual_norm(x, None, None, block.gain_in, None, block.eps)[1]
        for index in range(len(self._blocks) - 1):
            block = self._blocks[index]
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            q, attended = self._rotate(index, self._qkv[index]((normal,)), prompts.positions, prompts.slots, cache)
            paged_prefill_attention(
                q, keys, values, prompts.table, prompts.tiles, attended,
                k_scale=k_scale, v_scale=v_scale, rule=block.rule,
            )  # fmt: skip
            self._join(index, x, attended, normal, self._blocks[index + 1].gain_in)
        return self._last_block(x, normal, prompts, cache)

    def activation_bytes(self, positions: int) -> int:
        """Return an upper bound: the products of a block and what is made of them, and some hidden states."""
        block = self._blocks[0]
        dim, width = block.w_out.shape
        wide = len(block.w_qkv) + 2 * width + 2 * len(block.w_gate_up) + 8 * dim
        return positions * wide * block.w_qkv.element_size()

    def _rotate(
        self, index: int, h: Tensor, positions: Tensor, slots: Tensor | None, cache: KvPages
    ) -> tuple[Tensor, Tensor]:
        """Return rotated queries, if `h` has any, and room for what attention makes of them; store keys and values."""
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        heads = h.shape[1] // keys.shape[3] - 2 * keys.shape[2]
        return rotary_gelu_write(
            h, positions, slots, self._rotary, keys, values, heads, k_scale=k_scale, v_scale=v_scale
        )  # fmt: skip

    def _join(self, index: int, x: Tensor, attended: Tensor, normal: Tensor, following: Tensor | None) -> None:
        """Add attention and the MLP to the stream `x`; write what goes into the next block to `normal`."""
        block = self._blocks[index]
        add_normed(x, self._out[index]((attended,)), block.gain_attended, block.gain_mlp, block.eps, normal)
        inside = swiglu(self._gate_up[index]((normal,)), gelu=True)
        add_normed(x, self._down[index]((inside,)), block.gain_out, following, block.eps, normal)

    def _last_block(self, x: Tensor, normal: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Write keys and values of all positions; return the states of the last ones, ``[R, dim]``."""
        index, last = len(self._blocks) - 1, prompts.last
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        # The last position that a row sees: attention reads it before the kernel in front ends, which must be another.
        seen = prompts.lengths - 1
        self._rotate(index, self._last_kv((normal,)), prompts.positions, prompts.slots, cache)
        x, normal, ends = (part.index_select(0, last) for part in (x, normal, prompts.positions))
        q, attended = self._rotate(index, self._qkv[index]((normal,)), ends, None, cache)
        decode_attention(
            q.flatten(1), self._rotary, keys, values, prompts.table, seen, seen, attended,
            k_scale=k_scale, v_scale=v_scale, rule=self._blocks[index].rule, stored=True,
        )  # fmt: skip
        self._join(index, x, attended, normal, None)
        return x

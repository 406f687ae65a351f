"""The decoder in decode steps: one position a row, five kernels a block.

```
x ─┬─ norm, w_qkv ── norms, rotary, write, paged attention ── w_proj, + x ─┬─ norm, w_gate_up, SwiGLU ── w_down, + x
   1                 2                                        3            4                             5
```

Norms are part of the products around them: see `kernels.serial_block`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.norms import residual_norm
from photonlite.kernels.quantised import Weight
from photonlite.kernels.rank_sums import Norm, RankSums
from photonlite.kernels.row_adapters import RowTerms, shrink
from photonlite.kernels.serial_block import add_linear, empty_scales, norm_linear, scale_stream
from photonlite.kernels.small_batch_gemm import MAX_ROWS, group_of, linear_into
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.qwen.fused.layers import BlockWeights, row_terms


class FusedDecode:
    """Computes decode steps with the weights of a decoder's blocks; see `models.base.StepDecoder`."""

    _adapted = False  # whether products add terms of adapters

    def __init__(self, blocks: Sequence[BlockWeights], rotary: Tensor) -> None:
        self._blocks = blocks
        self._rotary = rotary  # [2, positions, D / 2]

    def adapted(self, bank: AdapterBank) -> "AdaptedDecode":
        """Return the same with the terms that a bank has places for now; it must run inside `bank.running`."""
        return AdaptedDecode(self._blocks, self._rotary, bank)

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        count, block = len(x), self._blocks[0]
        dim, width = block.w_proj.shape
        inner = block.w_down.shape[1]
        qkv, attended, inside = (x.new_empty(count, size) for size in (len(block.w_qkv), width, inner))
        into, between = (
            empty_scales(count, dim, size, block.eps, x, group=group_of(weight), adapted=self._adapted)
            for size, weight in ((inner, block.w_down), (width, block.w_proj))
        )
        scale_stream(x, block.gain_in, into)
        for index, block in enumerate(self._blocks):
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            norm_linear(into, block.w_qkv, block.b_qkv, qkv, added=self._added(index, "attn.qkv", into.rows))
            decode_attention(
                qkv, self._rotary, keys, values, rows.table, rows.positions, rows.slots, attended,
                turns=rows.turns, norms=block.norms, k_scale=k_scale, v_scale=v_scale,
            )  # fmt: skip
            added = self._added(index, "attn.proj", attended)
            add_linear(attended, block.w_proj, x, (block.gain_mlp, between), added)
            added = self._added(index, "mlp.gate_up", between.rows)
            norm_linear(between, block.w_gate_up, None, inside, gated=True, added=added)
            following = self._blocks[index + 1] if index + 1 < len(self._blocks) else None
            norm = None if following is None else (following.gain_in, into)
            add_linear(inside, block.w_down, x, norm, self._added(index, "mlp.down", inside))
        return x

    def _added(self, index: int, layer: str, x: Tensor) -> RowTerms | None:
        """Return what is added to the product of a layer that reads `x`."""
        return None


class AdaptedDecode(FusedDecode):
    """Computes steps some of whose rows have adapters: A in front of each product, B inside it."""

    _adapted = True

    def __init__(self, blocks: Sequence[BlockWeights], rotary: Tensor, bank: AdapterBank) -> None:
        super().__init__(blocks, rotary)
        self._bank = bank
        self._terms = {
            (index, layer): row_terms(bank, f"text.blocks.{index}.{layer}")
            for index in range(len(blocks))
            for layer in ("attn.qkv", "attn.proj", "mlp.gate_up", "mlp.down")
        }
        columns = max(1, *map(len, self._terms.values())) * bank.rank
        gain = blocks[0].gain_in
        wide = torch.promote_types(gain.dtype, torch.float32)
        self._low = torch.zeros(MAX_ROWS, columns, dtype=wide, device=gain.device)

    def _added(self, index: int, layer: str, x: Tensor) -> RowTerms:
        added = RowTerms(self._bank.rows.index, self._low[: len(x)], self._terms[index, layer])
        if added.terms:
            shrink(x, added)
        return added


class RankDecode:
    """Computes a rank's share of steps: both products into the stream give parts of it, which are added up.

    The sum over all ranks is normalised at once, so no product has a norm.
    """

    def __init__(self, blocks: Sequence[BlockWeights], rotary: Tensor, ranks: RankGroup) -> None:
        self._blocks = blocks
        self._rotary = rotary
        self._sums = RankSums(ranks, len(blocks[0].gain_in), 2 * len(blocks))

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        count, block = len(x), self._blocks[0]
        sizes = len(block.w_qkv), block.w_proj.shape[1], block.w_down.shape[1]
        qkv, attended, inside = (x.new_empty(count, size) for size in sizes)
        given = residual_norm(x, None, None, block.gain_in, None, block.eps)[1]
        for index, block in enumerate(self._blocks):
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            linear_into(qkv, given, block.w_qkv, block.b_qkv)
            decode_attention(
                qkv, self._rotary, keys, values, rows.table, rows.positions, rows.slots, attended,
                turns=rows.turns, norms=block.norms, k_scale=k_scale, v_scale=v_scale,
            )  # fmt: skip
            given = self._add(2 * index, x, attended, block.w_proj, (block.gain_mlp, None, block.eps))
            linear_into(inside, given, block.w_gate_up, None, gated=True)
            following = self._blocks[index + 1] if index + 1 < len(self._blocks) else None
            norm = None if following is None else (following.gain_in, None, following.eps)
            given = self._add(2 * index + 1, x, inside, block.w_down, norm)
        return x

    def _add(self, index: int, x: Tensor, inside: Tensor, weight: Weight, norm: Norm | None) -> Tensor:
        """Add the product of all ranks to the stream; return its norm."""
        partial = self._sums.partial(x, index)
        linear_into(partial, inside, weight, None)
        return self._sums.add(x, partial, index, norm)

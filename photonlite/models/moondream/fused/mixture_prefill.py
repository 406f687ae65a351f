"""Prompts of a decoder with temperatures or experts: rows of any lengths on one axis.

```
x ─┬─ norm ─┬─ w_in ── temperatures ── rotary, GELU, write ── paged attention ── w_out ─┐
   │        └─ router ── route ── experts_in ── experts_out ────────────────────────────┤
   └──────────────────────────────────────────────────────────────────── + w_out, then + experts, + bias, norm
```
"""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.experts import add_and_norm
from photonlite.kernels.prefill_attention import paged_prefill_attention
from photonlite.kernels.quantised import dense
from photonlite.kernels.rotary import rotary_gelu_write
from photonlite.models.base import KvPages, PackedPrompts
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.fused.layers import PackedBlock
from photonlite.models.moondream.fused.mixture import MixtureTables


class MixturePrefill:
    """Runs prompts with packed weights; see `models.base.PromptDecoder`."""

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...]) -> None:
        self._heads = config.n_heads
        self._blocks = blocks
        self._tables = MixtureTables(config, blocks)

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        added, shift = None, None  # what x still lacks: results of experts, and biases
        for index, block in enumerate(self._blocks):
            normal = add_and_norm(x, added, shift, block.norm)
            h = functional.linear(normal, dense(block.w_in, normal.dtype), block.b_in)
            split = len(block.w_in) if block.experts is None else self._tables.qkv_width
            inside = self._attend(index, h[:, :split], prompts, cache)
            added = None if block.experts is None else block.experts(normal, h[:, split:])
            x, shift = torch.addmm(x, inside, dense(block.w_out, x.dtype).t()), block.b_out
        return add_and_norm(x, added, shift, None).index_select(0, prompts.last)

    def activation_bytes(self, positions: int) -> int:
        """Return an upper bound: a block's products, what its experts hold, and some hidden states."""
        numbers = 0
        for block in self._blocks:
            (inner, dim), most = block.w_in.shape, block.w_out.shape[1]
            experts = block.experts
            pairs = 0 if experts is None else experts.rank_count * (experts.outward.values.shape[2] + dim)
            numbers = max(numbers, inner + 3 * self._tables.qkv_width + most + pairs + 8 * dim)
        return positions * numbers * self._blocks[0].ln_weight.element_size()

    def _attend(self, index: int, h: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Return the input of a block's last product: what attention returns and, in front of experts, nothing else."""
        tables, block = self._tables, self._blocks[index]
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        factors = tables.factors(block, h[:, : tables.qkv_width], prompts.positions)
        q, inside = rotary_gelu_write(
            h, prompts.positions, prompts.slots, tables.rotary, keys, values, self._heads,
            factors=factors, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
        paged_prefill_attention(
            q, keys, values, prompts.table, prompts.tiles, inside[:, : tables.width], k_scale=k_scale, v_scale=v_scale
        )
        return inside

"""The decoder in prompts: rows of any lengths on one axis, five kernels a block.

```
x ─┬─ norm ── w_in ── rotary, GELU, write ─┬─ paged attention ─┬─ w_out ─┐
   │        [q k v fc1]   │                └─ inner MLP ───────┘         │
   │                      └─> pages of keys and values                   │
   └──────────────────────────────────────────────────────────────────── + bias ── norm of the next block
```

Either the product or the norm adds to `x`; see `models.fused_layers`. FP8 fuses GELU with the quantisation for `w_out`.
The last block computes keys and values of all positions, and the rest only for each row's last position.
"""

import torch
from torch import Tensor

from photonlite.kernels.fp8 import beside_gelu_fp8
from photonlite.kernels.norms import residual_norm
from photonlite.kernels.paged_attention import paged_attention
from photonlite.kernels.prefill_attention import paged_prefill_attention
from photonlite.kernels.quantised import Weight
from photonlite.kernels.reference.attention import indexable
from photonlite.kernels.rotary import rotary_gelu_write
from photonlite.models.adapters.fused_layers import AdaptedLinear, TermRows, columns_from
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import KvPages, PackedPrompts
from photonlite.models.fused_layers import Fp8Linear, Linear, Norm, Rows, WideLinear, join_layers
from photonlite.models.layers import rotary_table
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.fused.layers import PackedBlock
from photonlite.models.moondream.fused.terms import block_terms


class FusedPrefill:
    """Runs prompts with packed weights; SettingsError for `fp8` on a card that cannot multiply these sizes."""

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...], *, fp8: bool = False) -> None:
        self._config = config
        self._blocks = blocks
        self._fp8 = fp8
        self._width = config.n_heads * config.head_dim
        self._qkv_width = self._width + 2 * config.kv_heads * config.head_dim
        self._inward = [self._linear(index, "in", block.w_in, block.b_in) for index, block in enumerate(blocks)]
        self._outward = [self._linear(index, "out", block.w_out, None) for index, block in enumerate(blocks)]
        self._norms = [Norm(block.ln_weight, block.ln_bias, block.eps, fp8) for block in blocks]
        self._joins, lacking = join_layers(self._outward[:-1], [block.b_out for block in blocks], self._norms[1:])
        self._last_bias = lacking[-1]
        kv_rows, last = slice(self._width, self._qkv_width), blocks[-1]
        self._last_kv = self._linear(len(blocks) - 1, "keys", last.w_in[kv_rows], last.b_in[kv_rows])
        positions = torch.arange(config.max_context, device=blocks[0].w_in.device)
        angles = rotary_table(positions, config.rotary_dim, config.rope_theta)
        self._rotary = torch.stack(angles).squeeze(2).contiguous()  # [2, positions, R / 2]

    def adapted(self, bank: AdapterBank) -> "AdaptedPrefill":
        """Return the same, without FP8, with the terms that a bank has places for now; see `base.AdaptableDecoder`."""
        return AdaptedPrefill(self._config, self._blocks, bank)

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        x, rows = self._norms[0](x, None, None)
        for index, join in enumerate(self._joins):
            x, rows = join(x, self._block(index, rows, prompts, cache))
        return self._last_block(x, rows, prompts, cache)

    def activation_bytes(self, positions: int) -> int:
        """Return an upper bound: the largest products of a block, and some hidden states."""
        block = self._blocks[0]
        wide = len(block.w_in) + 2 * block.w_out.shape[1] + 8 * block.w_in.shape[1]
        matrices = 0 if isinstance(block.w_in, Tensor) else block.w_in.shape[0] * block.w_in.shape[1]
        return (positions * wide + matrices) * block.ln_weight.element_size()

    def _linear(self, index: int, product: str, weight: Weight, bias: Tensor | None) -> Linear:
        """Make a product of a block: "in", "out", or "keys" of the last block, with the values."""
        return (Fp8Linear if self._fp8 else WideLinear)(weight, bias)

    def _block(self, index: int, rows: Rows, prompts: PackedPrompts, cache: KvPages) -> Rows:
        """Return the input of a block's last product."""
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        h = self._inward[index](rows)
        q, cat = rotary_gelu_write(
            self._activated(h), prompts.positions, prompts.slots, self._rotary, keys, values,
            self._config.n_heads, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
        paged_prefill_attention(
            q, keys, values, prompts.table, prompts.tiles, cat[:, : self._width], k_scale=k_scale, v_scale=v_scale
        )
        return self._concatenated(cat, h)

    def _activated(self, h: Tensor) -> Tensor:  # input of the rotary and GELU kernel; with FP8 GELU is applied later
        return h[:, : self._qkv_width] if self._fp8 else h

    def _concatenated(self, cat: Tensor, h: Tensor) -> Rows:  # attention and GELU outputs side by side
        return beside_gelu_fp8(cat, h[:, self._qkv_width :]) if self._fp8 else (cat,)

    def _last_block(self, x: Tensor, rows: Rows, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Write keys and values of all positions; return the states of the last ones, ``[R, dim]``."""
        norm, index = self._norms[-1], len(self._norms) - 1
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        rotary_gelu_write(
            self._last_kv(rows), prompts.positions, prompts.slots, self._rotary, keys, values,
            0, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
        h = self._inward[index](tuple(indexable(row).index_select(0, prompts.last).view(row.dtype) for row in rows))
        q, cat = rotary_gelu_write(
            self._activated(h), prompts.positions.index_select(0, prompts.last), None, self._rotary,
            keys, values, self._config.n_heads,
        )  # fmt: skip
        attended = paged_attention(q, keys, values, prompts.table, prompts.lengths, k_scale, v_scale)
        cat[:, : self._width] = attended.flatten(1)
        delta = self._outward[index](self._concatenated(cat, h))
        x = x.index_select(0, prompts.last)
        # Only the kernel's sum is used, not its norm.
        return residual_norm(x, delta, self._last_bias, norm.weight, norm.bias, norm.eps)[0]


class AdaptedPrefill(FusedPrefill):
    """Runs prompts some of whose positions have adapters, by the bank's current rows."""

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...], bank: AdapterBank) -> None:
        qkv, attended = (config.n_heads + 2 * config.kv_heads) * config.head_dim, config.n_heads * config.head_dim
        self._terms = [block_terms(bank, index, qkv, attended) for index in range(len(blocks))]
        columns = max(terms.columns for terms in self._terms)
        self._all, self._ends = TermRows(bank, columns), TermRows(bank, columns)
        super().__init__(config, blocks)

    def _linear(self, index: int, product: str, weight: Weight, bias: Tensor | None) -> Linear:
        terms, rows = self._terms[index], self._ends if index == len(self._blocks) - 1 else self._all
        if product == "keys":
            keys = columns_from(terms.into, self._width, self._qkv_width)
            return AdaptedLinear(weight, bias, keys, keys, self._all)
        if product == "in":
            return AdaptedLinear(weight, bias, terms.of_norm, terms.into, rows)
        return AdaptedLinear(weight, bias, terms.of_inside, terms.out, rows, fresh=False)

    def _last_block(self, x: Tensor, rows: Rows, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        self._ends.places = prompts.last
        return super()._last_block(x, rows, prompts, cache)

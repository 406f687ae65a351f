"""The decoder in prompts: rows of any lengths on one axis, eight kernels a block.

```
x ─┬─ norm ── w_qkv ── norms, rotary, write ── paged attention ── w_proj ─┐
   └───────────────────────────────────────────────────────────────────── + ─┬─ norm ── w_gate_up ── SwiGLU ── w_down ─┐
                                                                             └──────────────────────────────────────── +
```

A product adds to the stream itself, except the first, whose input belongs to the caller, and those in FP8: there the
norm behind it adds. The norm also adds features of deepstack, which enter the stream behind the first blocks.
The last block computes keys and values of all positions, and the rest only for each row's last position.

A few positions, such as forced runs, take the products of decode steps with the norms inside, and attention whose
parts fill the card: six kernels a block.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.fp8 import quantise_rows
from photonlite.kernels.paged_attention import paged_attention
from photonlite.kernels.prefill_attention import paged_prefill_attention
from photonlite.kernels.quantised import Weight
from photonlite.kernels.reference.attention import indexable
from photonlite.kernels.rotary import rotary_gelu_write
from photonlite.kernels.serial_block import add_linear, empty_scales, norm_linear, scale_stream
from photonlite.kernels.small_batch_gemm import group_of
from photonlite.models.adapters.fused_layers import AdaptedLinear, TermRows, columns_from
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import KvPages, PackedPrompts
from photonlite.models.fused_layers import Fp8Linear, Linear, Norm, Rows, WideLinear
from photonlite.models.qwen.fused.layers import BlockWeights, row_terms

SHORT = 16  # positions that are run as rows of a decode step at most


class FusedPrefill:
    """Runs prompts; SettingsError for `fp8` on a card that cannot multiply these sizes.

    `rotary` is ``[2, positions, D / 2]``, `axes`, int32 ``[D / 2]``: the column of `PackedPrompts.turns` of each pair.
    """

    def __init__(
        self,
        blocks: Sequence[BlockWeights],
        rotary: Tensor,
        axes: Tensor,
        heads: int,
        *,
        fp8: bool = False,
        short: bool = False,  # whether the kernels of decode steps run a few positions
    ) -> None:
        self._short = short and not fp8
        self._blocks = blocks
        self._rotary, self._axes = rotary, axes
        self._heads = heads
        self._fp8 = fp8
        linear, numbered = self._linear, list(enumerate(blocks))
        self._qkv = [linear(index, "attn.qkv", block.w_qkv, block.b_qkv) for index, block in numbered]
        self._proj = [linear(index, "attn.proj", block.w_proj, None) for index, block in numbered]
        self._gate_up = [linear(index, "mlp.gate_up", block.w_gate_up, None) for index, block in numbered]
        self._down = [linear(index, "mlp.down", block.w_down, None) for index, block in numbered]
        self._norms_in = [Norm(block.gain_in, None, block.eps, fp8) for block in blocks]
        self._norms_mlp = [Norm(block.gain_mlp, None, block.eps, fp8) for block in blocks]
        last, width = blocks[-1], blocks[-1].w_proj.shape[1]
        b_keys = None if last.b_qkv is None else last.b_qkv[width:]
        self._last_kv = linear(len(blocks) - 1, "keys", last.w_qkv[width:], b_keys)

    def adapted(self, bank: AdapterBank) -> "AdaptedPrefill":
        """Return the same, without FP8, with the terms that a bank has places for now; see `base.AdaptableDecoder`."""
        return AdaptedPrefill(self._blocks, self._rotary, self._axes, self._heads, bank)

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        if self._short and len(x) <= SHORT:
            return self._run_short(x.clone(), prompts, cache)
        own = x
        x, rows = self._norms_in[0](x, None, None)
        for index in range(len(self._blocks) - 1):
            attended = self._attend(index, rows, prompts, cache)
            x, rows = self._join(x, self._proj[index], attended, self._norms_mlp[index], own=x is own)
            inside = self._gate_up[index].swiglu(rows)
            deepstack = _deepstack(prompts, index)
            x, rows = self._join(x, self._down[index], inside, self._norms_in[index + 1], deepstack)
        return self._last_block(x, rows, prompts, cache)

    def _run_short(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Run a few positions, each as a row of a decode step; `x` is overwritten."""
        count, block, table = len(x), self._blocks[0], tables_of(prompts, len(x))
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
            q, _ = self._rotate(index, qkv, prompts, prompts.slots, cache, self._heads)
            decode_attention(
                q.flatten(1), self._rotary, keys, values, table, prompts.positions, prompts.positions, attended,
                k_scale=k_scale, v_scale=v_scale, stored=True,
            )  # fmt: skip
            add_linear(attended, block.w_proj, x, (block.gain_mlp, between))
            norm_linear(between, block.w_gate_up, None, inside, gated=True)
            following = self._blocks[index + 1] if index + 1 < len(self._blocks) else None
            deepstack = _deepstack(prompts, index)
            norm = None if following is None or deepstack is not None else (following.gain_in, into)
            add_linear(inside, block.w_down, x, norm)
            if deepstack is not None:
                x += deepstack
                if following is not None:
                    scale_stream(x, following.gain_in, into)
        return x.index_select(0, prompts.last)

    def activation_bytes(self, positions: int) -> int:
        """Return an upper bound: the products of a block and what is made of them, and some hidden states."""
        block = self._blocks[0]
        dim, width = block.w_proj.shape
        wide = len(block.w_qkv) + 2 * width + 2 * len(block.w_gate_up) + 8 * dim
        matrix = 0 if isinstance(block.w_gate_up, Tensor) else len(block.w_gate_up) * dim
        return (positions * wide + matrix) * block.gain_in.element_size()

    def _linear(self, index: int, layer: str, weight: Weight, bias: Tensor | None) -> Linear:
        """Make a layer of a block; "keys" is that of keys and values alone, of the last block."""
        return (Fp8Linear if self._fp8 else WideLinear)(weight, bias)

    def _attend(self, index: int, rows: Rows, prompts: PackedPrompts, cache: KvPages) -> Rows:
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        q, attended = self._rotate(index, self._qkv[index](rows), prompts, prompts.slots, cache, self._heads)
        paged_prefill_attention(
            q, keys, values, prompts.table, prompts.tiles, attended, k_scale=k_scale, v_scale=v_scale
        )
        return self._rows(attended)

    def _rotate(
        self, index: int, h: Tensor, prompts: PackedPrompts, slots: Tensor | None, cache: KvPages, heads: int
    ) -> tuple[Tensor, Tensor]:
        """Return rotated queries, and room for what attention makes of them; store keys and values in `slots`."""
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        turns, axes = (prompts.positions, None) if prompts.turns is None else (prompts.turns, self._axes)
        return rotary_gelu_write(
            h, turns, slots, self._rotary, keys, values, heads,
            axes=axes, norms=self._blocks[index].norms, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip

    def _join(
        self, x: Tensor, linear: Linear, rows: Rows, norm: Norm, extra: Tensor | None = None, *, own: bool = False
    ) -> tuple[Tensor, Rows]:
        """Return the stream `x` plus a product and `extra`, and its norm; a caller's `own` stream stays unchanged."""
        if isinstance(linear, WideLinear) and not own:
            linear.add_to(x, rows)
            return norm(x, extra, None)
        delta = linear(rows)
        return norm(x, delta if extra is None else delta.add_(extra), None)

    def _last_block(self, x: Tensor, rows: Rows, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Write keys and values of all positions; return the states of the last ones, ``[R, dim]``."""
        index, last = len(self._blocks) - 1, prompts.last
        keys, values = cache.layer(index)
        self._rotate(index, self._last_kv(rows), prompts, prompts.slots, cache, 0)
        ends = replace(
            prompts,
            positions=prompts.positions.index_select(0, last),
            turns=None if prompts.turns is None else prompts.turns.index_select(0, last),
        )
        x, rows = x.index_select(0, last), tuple(_select(row, last) for row in rows)
        q, _ = self._rotate(index, self._qkv[index](rows), ends, None, cache, self._heads)
        attended = paged_attention(q, keys, values, prompts.table, prompts.lengths, *cache.scales[index]).flatten(1)
        x, rows = self._join(x, self._proj[index], self._rows(attended), self._norms_mlp[index])
        x = x + self._down[index](self._gate_up[index].swiglu(rows))
        deepstack = _deepstack(prompts, index)
        return x if deepstack is None else x + deepstack.index_select(0, last)

    def _rows(self, x: Tensor) -> Rows:
        return quantise_rows(x) if self._fp8 else (x,)


def tables_of(prompts: PackedPrompts, count: int) -> Tensor:
    """Return the page table of each of `count` positions, ``[T, P]``; that of padding may be any row's."""
    index = torch.arange(count, device=prompts.last.device)
    before = (index[:, None] > prompts.last) & (prompts.lengths > 0)
    return prompts.table.index_select(0, before.sum(1).clamp(max=len(prompts.table) - 1))


class AdaptedPrefill(FusedPrefill):
    """Runs prompts some of whose positions have adapters, by the bank's current rows."""

    def __init__(
        self, blocks: Sequence[BlockWeights], rotary: Tensor, axes: Tensor, heads: int, bank: AdapterBank
    ) -> None:
        self._bank = bank
        self._ends: list[TermRows] = []  # of the last block, whose other products run with each row's last position
        super().__init__(blocks, rotary, axes, heads)

    def _linear(self, index: int, layer: str, weight: Weight, bias: Tensor | None) -> Linear:
        keys, qkv = layer == "keys", "attn.qkv"
        terms = row_terms(self._bank, f"text.blocks.{index}.{qkv if keys else layer}")
        rows = TermRows(self._bank, max(1, len(terms)) * self._bank.rank)
        if keys:
            total = len(self._blocks[-1].w_qkv)
            terms = columns_from(terms, total - len(weight), total)
        elif index == len(self._blocks) - 1:
            self._ends.append(rows)
        return AdaptedLinear(weight, bias, terms, terms, rows)

    def _last_block(self, x: Tensor, rows: Rows, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        for ends in self._ends:
            ends.places = prompts.last
        return super()._last_block(x, rows, prompts, cache)


def _deepstack(prompts: PackedPrompts, index: int) -> Tensor | None:
    """Return what is added behind a block, ``[T, dim]``, if anything is."""
    return None if prompts.deepstack is None or index >= len(prompts.deepstack) else prompts.deepstack[index]


def _select(rows: Tensor, places: Tensor) -> Tensor:
    return indexable(rows).index_select(0, places).view(rows.dtype)

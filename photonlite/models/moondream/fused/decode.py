"""The decoder in decode steps: one position a row, three kernels a block, four with the norm of several rows.

```
x ─┬─ norm, w_in, GELU ─┬─ [q k v] ── rotary, write, paged attention ─┬─ w_out, + bias, + x ── x of the next block
   │                    └─ inner MLP ─────────────────────────────────┘   and its statistics, for the next norm
```

The product at the end does not wait for attention: it starts with the MLP's share as soon as that is ready, and takes
attention's share last. At few rows attention reads little and waits much, and so costs next to nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.norms import residual_norm
from photonlite.kernels.rank_sums import RankSums
from photonlite.kernels.row_adapters import RowTerm, RowTerms, shrink
from photonlite.kernels.small_batch_gemm import (
    MAX_ROWS,
    Handshake,
    group_of,
    input_dtype,
    is_single,
    linear_in,
    linear_into,
    linear_out,
    supported,
    tile_statistics,
)
from photonlite.kernels.tilings import SEVERAL, programs_of, stats_width
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.layers import rotary_table
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.fused.layers import PackedBlock
from photonlite.models.moondream.fused.terms import block_terms


class FusedDecode:
    """Computes decode steps with the packed weights of a decoder; see `models.base.StepDecoder`."""

    _least = 1  # rows that products are tiled for

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...], *, ranks: int = 1) -> None:
        self._config = config
        self._blocks = blocks
        self._attended = config.n_heads * config.head_dim // ranks
        self._qkv = (config.n_heads + 2 * config.kv_heads) * config.head_dim // ranks
        device = blocks[0].w_in.device
        angles = rotary_table(torch.arange(config.max_context, device=device), config.rotary_dim, config.rope_theta)
        self._rotary = torch.stack(angles).squeeze(2).contiguous()  # [2, positions, R / 2]
        # Finished programs of each block's first product; each block clears the count of the one before.
        self._ready = torch.zeros(len(blocks), dtype=torch.int32, device=device)

    def adapted(self, bank: AdapterBank) -> "AdaptedDecode":
        """Return the same with the terms that a bank has places for now; it must run inside `bank.running`."""
        return AdaptedDecode(self._config, self._blocks, bank)

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        try:
            return self._step(x, rows, cache)
        except BaseException:
            self._ready.zero_()  # the next step must not see the counts of a step that failed half-way
            raise

    def _step(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        count, inner = len(x), self._blocks[0].w_out.shape[1]
        group = group_of(self._blocks[0].w_out)
        stats = self._statistics(x)
        qkv = x.new_empty(count, self._qkv)
        cat = x.new_empty(count, inner, dtype=self._inside_dtype(x))
        attended, activated = cat[:, : self._attended], cat[:, self._attended :]
        for index in range(len(self._blocks)):
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            self._linear_in(index, x, stats, qkv, activated)
            decode_attention(
                qkv, self._rotary, keys, values, rows.table, rows.positions, rows.slots, attended,
                k_scale=k_scale, v_scale=v_scale, weight_group=group,
            )  # fmt: skip
            self._linear_out(index, cat, x, stats)
        return x

    def _inside_dtype(self, x: Tensor) -> torch.dtype:
        """Return the type of what the second product takes, which operations of PyTorch take as it is."""
        weight = self._blocks[0].w_out
        return input_dtype(weight, x.dtype) if supported(x, weight) else x.dtype

    def _statistics(self, x: Tensor) -> Tensor | None:
        """Return those of a single row whose norm is part of the products."""
        block = self._blocks[0]
        if not is_single(max(len(x), self._least), block.w_in):
            return None
        return tile_statistics(x, stats_width(*block.w_out.shape, group=group_of(block.w_out)))

    def _linear_in(self, index: int, x: Tensor, stats: Tensor | None, qkv: Tensor, activated: Tensor) -> None:
        block = self._blocks[index]
        linear_in(x, stats, block.w_in, block.b_in, block.norm, qkv, activated, self._handshake(index, x))

    def _linear_out(self, index: int, cat: Tensor, x: Tensor, stats: Tensor | None) -> None:
        block, last = self._blocks[index], index == len(self._blocks) - 1
        linear_out(cat, block.w_out, block.b_out, x, stats, None if last else self._handshake(index, x))

    def _handshake(self, index: int, x: Tensor) -> Handshake | None:
        """Synchronise a block's two products, of which the second starts before attention ends.

        The next block clears the count. For the last block that would be the first of the next step, whose programs may
        have started and read the count before any of them clears it: the last block has no handshake.
        """
        weight = self._blocks[index].w_in
        if len(self._blocks) == 1 or not supported(x, weight):
            return None
        previous = (index - 1) % len(self._blocks)
        return Handshake(
            self._ready[index : index + 1],
            self._ready[previous : previous + 1],
            programs_of(max(len(x), self._least), *weight.shape, group=group_of(weight)),
            self._attended,
        )


class AdaptedDecode(FusedDecode):
    """Computes steps some of whose rows have adapters: A beside the norm and behind attention, B inside the products.

    A single row is normalised in front as several are, since only their product adds terms.
    """

    _least = SEVERAL

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...], bank: AdapterBank) -> None:
        super().__init__(config, blocks)
        self._bank = bank
        self._terms = [block_terms(bank, index, self._qkv, self._attended) for index in range(len(blocks))]
        columns = max(1, *(terms.columns for terms in self._terms))
        norm = blocks[0].ln_weight
        wide = torch.promote_types(norm.dtype, torch.float32)
        self._low = torch.zeros(MAX_ROWS, columns, dtype=wide, device=norm.device)

    def _linear_in(self, index: int, x: Tensor, stats: Tensor | None, qkv: Tensor, activated: Tensor) -> None:
        block, terms = self._blocks[index], self._terms[index]
        given, norm = x, block.norm if not terms.of_norm else None
        if terms.of_norm:
            given = shrink(x, self._added(x, terms.of_norm), block.norm)
        handshake, added = self._handshake(index, x), self._added(x, terms.into)
        linear_in(given, None, block.w_in, block.b_in, norm, qkv, activated, handshake, added)

    def _linear_out(self, index: int, cat: Tensor, x: Tensor, stats: Tensor | None) -> None:
        block, terms, last = self._blocks[index], self._terms[index], index == len(self._blocks) - 1
        if terms.of_inside:
            shrink(cat, self._added(x, terms.of_inside))
        handshake, added = None if last else self._handshake(index, x), self._added(x, terms.out)
        linear_out(cat, block.w_out, block.b_out, x, None, handshake, added)

    def _added(self, x: Tensor, terms: Sequence[RowTerm]) -> RowTerms:
        return RowTerms(self._bank.rows.index, self._low[: len(x)], terms)


class RankDecode(FusedDecode):
    """Computes a rank's share of steps: its heads and its part of the MLP give part of what a block adds to the stream.

    The sum over all ranks is normalised at once, so no product has a norm.
    """

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...], ranks: RankGroup) -> None:
        super().__init__(config, blocks, ranks=ranks.count)
        self._sums = RankSums(ranks, config.dim, len(blocks))
        self._rows: Tensor  # the stream, normalised

    def _statistics(self, x: Tensor) -> None: ...

    def _linear_in(self, index: int, x: Tensor, stats: Tensor | None, qkv: Tensor, activated: Tensor) -> None:
        block = self._blocks[index]
        if index == 0:
            self._rows = residual_norm(x, None, None, *block.norm)[1]
        linear_in(self._rows, None, block.w_in, block.b_in, None, qkv, activated, self._handshake(index, x))

    def _linear_out(self, index: int, cat: Tensor, x: Tensor, stats: Tensor | None) -> None:
        block, last = self._blocks[index], index == len(self._blocks) - 1
        partial = self._sums.partial(x, index)
        handshake = None if last else self._handshake(index, x)
        linear_into(partial, cat, block.w_out, block.b_out, handshake=handshake)
        self._rows = self._sums.add(x, partial, index, None if last else self._blocks[index + 1].norm)

"""The decoder in decode steps: one position a row, three kernels a block, four with the norm of several rows.

```
x ─┬─ norm, w_in, GELU ─┬─ [q k v] ── rotary, write, paged attention ─┬─ w_out, + bias, + x ── x of the next block
   │                    └─ inner MLP ─────────────────────────────────┘   and its statistics, for the next norm
```

The product at the end does not wait for attention: it starts with the MLP's share as soon as that is ready, and takes
attention's share last. At few rows attention reads little and waits much, and so costs next to nothing.
"""

import torch
from torch import Tensor

from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.small_batch_gemm import (
    Handshake,
    group_of,
    is_single,
    linear_in,
    linear_out,
    programs_of,
    stats_width,
    supported,
    tile_statistics,
)
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.layers import rotary_table
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.fused.layers import PackedBlock


class FusedDecode:
    """Computes decode steps with the packed weights of a decoder; see `models.base.StepDecoder`."""

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...]) -> None:
        self._blocks = blocks
        self._attended = config.n_heads * config.head_dim
        self._qkv = (config.n_heads + 2 * config.kv_heads) * config.head_dim
        device = blocks[0].w_in.device
        angles = rotary_table(torch.arange(config.max_context, device=device), config.rotary_dim, config.rope_theta)
        self._rotary = torch.stack(angles).squeeze(2).contiguous()  # [2, positions, R / 2]
        # Finished programs of each block's first product; each block clears the count of the one before.
        self._ready = torch.zeros(len(blocks), dtype=torch.int32, device=device)

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        try:
            return self._step(x, rows, cache)
        except BaseException:
            self._ready.zero_()  # the next step must not see the counts of a step that failed half-way
            raise

    def _step(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        count, (dim, inner) = len(x), self._blocks[0].w_out.shape
        single = is_single(count, self._blocks[0].w_in)
        group = group_of(self._blocks[0].w_out)
        stats = tile_statistics(x, stats_width(dim, inner, group=group)) if single else None
        qkv = x.new_empty(count, self._qkv)
        cat = x.new_empty(count, inner)
        attended, activated = cat[:, : self._attended], cat[:, self._attended :]
        for index, block in enumerate(self._blocks):
            keys, values = cache.layer(index)
            k_scale, v_scale = cache.scales[index]
            norm = block.ln_weight, block.ln_bias, block.eps
            handshake = self._handshake(index, x)
            last = index == len(self._blocks) - 1
            linear_in(x, stats, block.w_in, block.b_in, norm, qkv, activated, handshake)
            decode_attention(
                qkv, self._rotary, keys, values, rows.table, rows.positions, rows.slots, attended,
                k_scale=k_scale, v_scale=v_scale, weight_group=group,
            )  # fmt: skip
            linear_out(cat, block.w_out, block.b_out, x, stats, None if last else handshake)
        return x

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
            programs_of(len(x), *weight.shape, group=group_of(weight)),
            self._attended,
        )

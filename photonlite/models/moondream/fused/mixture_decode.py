"""Decode steps of a decoder with temperatures or experts: four kernels a block with an MLP, eight with experts.

```
x ─┬─ norm, w_in ─┬─ [q k v] ── temperatures ── rotary, write, paged attention ── w_out, + bias, + x ─┬─ x of the next
   │              └─ router ─── route ─┐                                                              │
   └─ norm ───────────────────────── experts_in ── experts_out ──── added with the next block's norm ─┘
```

Both ways from the product on are chains of small kernels that need nothing of each other: in a CUDA graph the experts
run on a branch beside attention. None of theirs counts programs in, as kernels on one stream may (`arrival_counters`).
"""

from torch import Tensor

from photonlite.device.branches import Branch
from photonlite.kernels.decode_attention import decode_attention
from photonlite.kernels.experts import add_and_norm
from photonlite.kernels.small_batch_gemm import (
    linear_in,
    linear_out,
    small_batch_gemm,
    tile_statistics,
)
from photonlite.kernels.tilings import stats_width
from photonlite.models.base import KvPages, NextPositions
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.fused.layers import PackedBlock
from photonlite.models.moondream.fused.mixture import MixtureTables


class MixtureDecode:
    """Computes decode steps with the packed weights of a decoder; see `models.base.StepDecoder`."""

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...]) -> None:
        self._blocks = blocks
        self._tables = MixtureTables(config, blocks)
        self._branch = Branch(blocks[0].ln_weight.device)

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        first, split, width = self._blocks[0], self._tables.qkv_width, self._tables.width
        added = None  # what the experts of the block before return, which is not part of x yet
        stats = None
        if len(x) == 1 and first.experts is None:
            stats = tile_statistics(x, stats_width(*first.w_out.shape))
        for index, block in enumerate(self._blocks):
            inside = x.new_empty(len(x), block.w_out.shape[1])
            if block.experts is None:
                qkv = x.new_empty(len(x), split)
                linear_in(x, stats, block.w_in, block.b_in, block.norm, qkv, inside[:, width:])
                self._attend(index, qkv, rows, cache, inside[:, :width])
            else:
                normal = add_and_norm(x, added, None, block.norm)
                h = small_batch_gemm(normal, block.w_in, block.b_in)
                with self._branch.beside():
                    added = block.experts(normal, h[:, split:])
                self._attend(index, h[:, :split], rows, cache, inside)
            linear_out(inside, block.w_out, block.b_out, x, stats if block.experts is None else None)
            self._branch.join()  # before the next norm, which adds what the experts return
        return add_and_norm(x, added, None, None)

    def _attend(self, index: int, qkv: Tensor, rows: NextPositions, cache: KvPages, out: Tensor) -> None:
        keys, values = cache.layer(index)
        k_scale, v_scale = cache.scales[index]
        decode_attention(
            qkv, self._tables.rotary, keys, values, rows.table, rows.positions, rows.slots, out,
            factors=self._tables.factors(self._blocks[index], qkv, rows.positions), k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip

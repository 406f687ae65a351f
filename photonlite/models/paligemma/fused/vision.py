"""The vision tower on fused kernels; see `models.fused_vision`."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.models.fused_vision import BlockLayers, EncoderLayers, FusedTransformer
from photonlite.models.paligemma.fused.layers import joined
from photonlite.models.paligemma.vision import VisionBlock, VisionTower, normalize


class FusedTower:
    """A `VisionTower` on fused kernels; for the arguments see `models.fused_vision.FusedTransformer`."""

    def __init__(self, tower: VisionTower, *, fp8: bool = False, head_size: int | None = None) -> None:
        self._tower = tower
        self._transformer = FusedTransformer(layers_of(tower), normalize, fp8=fp8, head_size=head_size)
        self._project = self._transformer.linear(tower.project.weight, tower.project.bias)

    def encode(self, patches: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
        run, whole = self._transformer, self._tower.whole(patches)
        padded = functional.pad(whole, (0, run.patch_width - whole.shape[1]))
        return self._project(run.rows(run(run.table[padded.int()]).flatten(0, 1)))[None]

    def encoding(self, grids: Sequence[tuple[int, int]]) -> Callable[[Tensor], Tensor]:
        return partial(self.encode, grids=grids)


def layers_of(tower: VisionTower) -> EncoderLayers:
    plain = [block for block in tower.blocks if isinstance(block, VisionBlock)]
    blocks = [_block(block) for block in plain]
    return EncoderLayers(tower.patch_embed, tower.positions, plain[0].heads, blocks, tower.norm, images=1)


def _block(block: VisionBlock) -> BlockLayers:
    inward = block.q, block.k, block.v
    bias = torch.cat([layer.bias.detach() for layer in inward])
    return BlockLayers(block.norm1, joined(*inward), bias, block.out, block.norm2, block.mlp)

"""The vision towers on fused kernels: eight a block and, within windows, an attention for each size of window.

```
patches ─ patch_embed ─┐
                       + positions ─ norm ─ qkv ─ rotate ─ attention ─ proj, + ─┐
        ┌────────────────────────────────────────────────────────────────────────┘
        norm ─ fc1, GELU ─ fc2, + ─ norm ─ qkv of the next block
```

The older tower has SwiGLU in the place of GELU. Products add to the residual stream, whose biases ride along in the
norms: see `models.fused_layers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from photonlite.kernels.norms import shifted_norm
from photonlite.kernels.rotary import rotate_heads
from photonlite.models.fused_layers import Join, Norm, Rows, WideLinear, join_layers
from photonlite.models.layers import RMSNorm
from photonlite.models.qwen.text import GatedMLP
from photonlite.models.qwen.vision import MLP, Grid, Merger, Place, VisionBlock, VisionTower, attend_runs


@dataclass(frozen=True, slots=True)
class FusedBlock:
    """A block's layers, the joins behind two of them included."""

    qkv: WideLinear
    inside: Callable[[Rows], Rows]  # the MLP up to its last layer
    join_attention: Join
    join_mlp: Join
    lacking: Tensor  # [dim]: what the stream lacks behind the block


class FusedTower:
    """A `VisionTower` on fused kernels; see `models.base.PatchEncoder`."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self._heads = tower.config.heads
        plain = [block for block in tower.blocks if isinstance(block, VisionBlock)]
        mlps = [_mlp(block.mlp) for block in plain]
        outward = [layer for block, (_, last) in zip(plain, mlps, strict=True) for layer in (block.proj, last)]
        norms = [_norm(layer) for block in plain for layer in (block.norm1, block.norm2)]
        self._first_norm, *following = *norms, _norm(tower.merger.norm)
        joins, lacking = join_layers(
            [_linear(layer.weight, None) for layer in outward], [layer.bias for layer in outward], following
        )
        self._blocks = [
            FusedBlock(_linear(block.qkv.weight, block.qkv.bias), inside, join_attention, join_mlp, lack)
            for block, (inside, _), join_attention, join_mlp, lack in zip(
                plain, mlps, joins[::2], joins[1::2], lacking[1::2], strict=True
            )
        ]
        # Of the last images on each stream: those of a camera are alike.
        self._places: dict[int, tuple[tuple[Grid, ...], Place]] = {}

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        return self.encoding(grids)(patches)

    def encoding(self, grids: Sequence[Grid]) -> Callable[[Tensor], Tensor]:
        sizes, device = tuple(grids), self._tower.merger.norm.weight.device
        # Kernels make it, behind which those of another stream do not wait.
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        if stream not in self._places or self._places[stream][0] != sizes:
            self._places[stream] = sizes, self._tower.place_of(grids)
        return partial(self._run, place=self._places[stream][1])

    def _run(self, patches: Tensor, place: Place) -> Tensor:
        tower, config = self._tower, self._tower.config
        x = place.reorder(tower.patch_embed(tower.normalize(patches)))
        x, rows = self._first_norm(x, place.positions, None)
        outputs: list[Tensor] = []
        for index, block in enumerate(self._blocks):
            qkv = block.qkv(rows)
            rotate_heads(qkv, place.rotary, self._heads)
            q, k, v = qkv.view(len(qkv), 3, self._heads, -1).unbind(1)  # [P, H, D] each
            attended = attend_runs(q, k, v, place.runs_of(config, index)).flatten(1)
            x, rows = block.join_attention(x, (attended,))
            x, rows = block.join_mlp(x, block.inside(rows))
            if index in config.deepstack:
                merger = tower.deepstack[len(outputs)]
                assert isinstance(merger, Merger)
                outputs.append(_merge(merger, x, block.lacking))
        merged = tower.merger.mlp(rows[0].reshape(-1, tower.merger.joined))
        return torch.stack((place.put_back(merged), *outputs))


def _merge(merger: Merger, x: Tensor, lacking: Tensor) -> Tensor:
    """Join what a merger behind a block takes of the stream, which lacks the same numbers in every row."""
    joined, norm = x.view(-1, merger.joined), _norm(merger.norm)
    times = joined.shape[1] // x.shape[1]
    return merger.mlp(shifted_norm(joined, lacking.repeat(times), norm.weight, norm.bias, norm.eps))


def _norm(layer: nn.Module) -> Norm:
    if isinstance(layer, nn.LayerNorm):
        return Norm.of(layer, fp8=False)
    assert isinstance(layer, RMSNorm)
    return Norm(layer.weight.detach(), None, layer.eps, fp8=False)


def _mlp(mlp: nn.Module) -> tuple[Callable[[Rows], Rows], nn.Linear]:
    """Return an MLP up to its last layer, and that layer."""
    if isinstance(mlp, MLP):
        return _linear(mlp.fc1.weight, mlp.fc1.bias).gelu, mlp.fc2
    assert isinstance(mlp, GatedMLP)
    return _linear(mlp.gate_up.weight, mlp.gate_up.bias).swiglu, mlp.down


def _linear(weight: Tensor, bias: Tensor | None) -> WideLinear:
    """Return a layer that compiles nothing for a small image: its kernels would be compiled while others wait."""
    return WideLinear(weight, bias, short=False)

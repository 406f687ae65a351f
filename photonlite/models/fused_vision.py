"""The transformer of an image encoder, SigLIP's, on fused kernels: seven a block.

```
patches ─ patch_embed ─┐
                       + positions, bias ─ norm ─ qkv ─ attention ─ proj ─┐
           ┌──────────────────────────────────────────────────────────────┘
           + bias ─ norm ─ fc1, GELU ─ fc2 ─┐
                                            + bias ─ norm ─ qkv of the next block
```

The product (`proj`, `fc2`) or the norm behind it adds the residual; see `models.fused_layers`. With FP8 every norm,
GELU and output of attention is quantised row by row, and so are the weights.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from photonlite.kernels.autotune import BACKENDS, fastest, only_backend
from photonlite.kernels.fp8 import quantise_rows
from photonlite.models.fused_layers import Fp8Linear, Norm, Rows, WideLinear, join_layers
from photonlite.models.layers import MLP

ROW_MULTIPLE = 16  # rows of patches are padded to a multiple of this, with which products of 16-bit numbers are fastest
HEAD_MULTIPLE = 16  # numbers that tensor cores process at a time
_TIMED_REPEATS = 10  # runs in a row, so that the card and not the host takes the time

_logger = logging.getLogger("photonlite")


@dataclass(frozen=True, slots=True)
class BlockLayers:
    """A plain block's layers: a norm before attention, and one before the MLP."""

    norm1: nn.LayerNorm
    w_qkv: Tensor  # [3 H D, dim]: queries, keys, values
    b_qkv: Tensor  # [3 H D]
    proj: nn.Linear
    norm2: nn.LayerNorm
    mlp: MLP


@dataclass(frozen=True, slots=True)
class EncoderLayers:
    """A plain encoder's layers up to the norm behind its last block."""

    patch_embed: nn.Linear
    positions: Tensor  # [P, dim]
    heads: int
    blocks: Sequence[BlockLayers]
    norm: nn.LayerNorm
    images: int  # or crops, of a launch on average

    @property
    def head_size(self) -> int:
        return self.positions.shape[1] // self.heads


class FusedBlock:
    """One block's layers; `head_size` is the size of a head in the attention, its own or larger with zeros behind."""

    def __init__(
        self, block: BlockLayers, heads: int, head_size: int, linear: type[WideLinear] | type[Fp8Linear]
    ) -> None:
        weight, bias, proj = block.w_qkv, block.b_qkv, block.proj.weight.detach()
        own = len(proj) // heads
        if head_size > own:
            weight = _pad_heads(weight.view(3 * heads, own, -1), head_size).flatten(0, 1)
            bias = _pad_heads(bias.view(3 * heads, own, 1), head_size).flatten()
            proj = _pad_heads(proj.view(-1, own, 1), head_size).view(len(proj), -1)
        self.qkv = linear(weight, bias)
        self.proj = linear(proj, None)
        self.fc1 = linear(block.mlp.fc1.weight, block.mlp.fc1.bias)
        self.fc2 = linear(block.mlp.fc2.weight, None)


class FusedTransformer:
    """Runs patches up to the norm behind the last block.

    `normalize` maps uint8 pixels to what the encoder reads. `head_size` is the fastest one unless given. Raises
    SettingsError for `fp8` on a card that cannot multiply these sizes.
    """

    def __init__(
        self,
        layers: EncoderLayers,
        normalize: Callable[[Tensor], Tensor],
        *,
        fp8: bool = False,
        head_size: int | None = None,
    ) -> None:
        blocks, weight = layers.blocks, layers.patch_embed.weight.detach()
        self.linear: type[WideLinear] | type[Fp8Linear] = Fp8Linear if fp8 else WideLinear
        self.rows: Callable[[Tensor], Rows] = quantise_rows if fp8 else lambda x: (x,)
        self.table = normalize(torch.arange(256, dtype=torch.uint8, device=weight.device)).to(weight.dtype)
        self._patch_weight = functional.pad(weight, (0, -weight.shape[1] % ROW_MULTIPLE))
        self._patch_bias = layers.patch_embed.bias.detach()
        self._positions = layers.positions.detach()
        self._scale = layers.head_size**-0.5
        self._head_size = head_size or fastest_head_size(layers)
        self._blocks = [FusedBlock(block, layers.heads, self._head_size, self.linear) for block in blocks]
        norms = [Norm.of(layer, fp8=fp8) for block in blocks for layer in (block.norm1, block.norm2)]
        norms.append(Norm.of(layers.norm, fp8=False))
        adding = [layer for block in self._blocks for layer in (block.proj, block.fc2)]
        biases = [layer.bias.detach() for block in blocks for layer in (block.proj, block.mlp.fc2)]
        joins, _ = join_layers(adding, biases, norms[1:])
        self._first_norm = norms[0]
        self._joins = list(zip(joins[::2], joins[1::2], strict=True))

    @property
    def patch_width(self) -> int:
        """Numbers of a patch, zeros behind it included."""
        return self._patch_weight.shape[1]

    def __call__(self, patches: Tensor) -> Tensor:
        """Map the patches of images, ``[n P, patch_width]``, to features ``[n, P, dim]``."""
        images = len(patches) // len(self._positions)
        x, rows = self._first_norm(functional.linear(patches, self._patch_weight), self._positions, self._patch_bias)
        for block, (join_attention, join_mlp) in zip(self._blocks, self._joins, strict=True):
            attended = attend_heads(block.qkv(rows), images, self._head_size, self._scale)
            x, rows = join_attention(x, self.rows(attended))
            x, rows = join_mlp(x, block.fc1.gelu(rows))
        return rows[0].view(images, *self._positions.shape)


@torch.inference_mode()
def fastest_head_size(layers: EncoderLayers) -> int:
    """Return the faster size of a head in the attention: its own, or padded with zeros to a multiple of 16.

    SigLIP has heads of 72, for which not every library has a kernel. On the CPU heads keep their size.
    """
    own, positions = layers.head_size, layers.positions
    sizes = sorted({own, -(-own // HEAD_MULTIPLE) * HEAD_MULTIPLE})
    if not positions.is_cuda or len(sizes) == 1:
        return own
    x = torch.randn(layers.images * len(positions), positions.shape[1]).to(positions)
    runs: dict[tuple[int, SDPBackend], Callable[[], None]] = {}
    for size in sizes:
        fused = FusedBlock(layers.blocks[0], layers.heads, size, WideLinear)
        for backend in BACKENDS:
            run = partial(_attend_repeatedly, fused, x, backend, layers.images, size, own)
            try:
                run()
            except RuntimeError:  # the backend has no kernel for this size
                continue
            runs[size, backend] = run
    if not runs:
        return own
    size, backend = list(runs)[fastest(list(runs.values()))]
    _logger.debug("heads of %d in the image encoder run fastest with %d numbers, by %s", own, size, backend.name)
    return size


def _attend_repeatedly(block: FusedBlock, x: Tensor, backend: SDPBackend, images: int, size: int, own: int) -> None:
    with only_backend(backend):
        for _ in range(_TIMED_REPEATS):
            block.proj((attend_heads(block.qkv((x,)), images, size, own**-0.5),))


def attend_heads(qkv: Tensor, images: int, head_size: int, scale: float) -> Tensor:
    """Attention within each image: queries, keys and values ``[n P, 3 H D]`` to ``[n P, H D]``."""
    split = qkv.view(images, len(qkv) // images, 3, -1, head_size)
    q, k, v = split.transpose(1, 3).unbind(2)  # [n, H, P, D]
    out = functional.scaled_dot_product_attention(q, k, v, scale=scale)
    return out.transpose(1, 2).reshape(len(qkv), -1)


def _pad_heads(parts: Tensor, size: int) -> Tensor:
    """Pad heads ``[heads, D, ...]`` with zeros: queries, keys and values then have zeros there too."""
    return functional.pad(parts, (0, 0, 0, size - parts.shape[1]))

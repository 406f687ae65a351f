"""The image encoder: the computation of :class:`VisionEncoder` in seven kernels a block.

```
crops ─ patches ─ patch_emb ─┐
                             + positions, bias ─ norm ─ qkv ─ attention ─ proj ─┐
                 ┌──────────────────────────────────────────────────────────────┘
                 + bias ─ norm ─ fc1, GELU ─ fc2 ─┐
                                                  + bias ─ norm ─ qkv of the next block
```

Of `proj, + bias, norm` the product adds or the norm; see `models.fused_layers`. With FP8 every norm, GELU and output of
attention is quantised row by row, and so are the weights.
"""

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from photonlite.kernels.autotune import BACKENDS, fastest, only_backend
from photonlite.kernels.fp8 import quantise_rows
from photonlite.kernels.vision import join_views, patch_rows
from photonlite.models.fused_layers import Fp8Linear, Norm, Rows, WideLinear, join_layers
from photonlite.models.layers import MLP
from photonlite.models.moondream.vision import EncoderBlock, VisionEncoder, normalize_pixels

ROW_MULTIPLE = 16  # rows of patches are padded to a multiple of this, with which products of 16-bit numbers are fastest
HEAD_MULTIPLE = 16  # numbers that tensor cores process at a time
_TIMED_CROPS = 8  # an image of average size
_TIMED_REPEATS = 10  # runs in a row, so that the card and not the host takes the time

_logger = logging.getLogger("photonlite")


class FusedBlock:
    """One block's layers; `head_size` is the size of a head in the attention, its own or larger with zeros behind."""

    def __init__(self, block: EncoderBlock, head_size: int, linear: type[WideLinear] | type[Fp8Linear]) -> None:
        attn, heads = block.attn, block.attn.heads
        weight, bias, proj = attn.qkv.weight.detach(), attn.qkv.bias.detach(), attn.proj.weight.detach()
        own = len(proj) // heads
        if head_size > own:
            weight = _pad_heads(weight.view(3 * heads, own, -1), head_size).flatten(0, 1)
            bias = _pad_heads(bias.view(3 * heads, own, 1), head_size).flatten()
            proj = _pad_heads(proj.view(-1, own, 1), head_size).view(len(proj), -1)
        self.qkv = linear(weight, bias)
        self.proj = linear(proj, None)
        self.fc1 = linear(block.mlp.fc1.weight, block.mlp.fc1.bias)
        self.fc2 = linear(block.mlp.fc2.weight, None)


class FusedEncoder:
    """A `VisionEncoder` on fused kernels; SettingsError for `fp8` on a card that cannot multiply these sizes."""

    def __init__(self, encoder: VisionEncoder, *, fp8: bool = False, head_size: int | None = None) -> None:
        config = encoder.config
        own = config.enc_dim // config.enc_n_heads
        linear = Fp8Linear if fp8 else WideLinear
        self._config = config
        self._scale = own**-0.5
        self._head_size = head_size or own
        self._rows: Callable[[Tensor], Rows] = quantise_rows if fp8 else lambda x: (x,)
        values = torch.arange(256, dtype=torch.uint8, device=encoder.pos_emb.device)
        self._table = normalize_pixels(values).to(encoder.pos_emb.dtype)
        weight = encoder.patch_emb.weight.detach()
        self._patch_weight = functional.pad(weight, (0, -weight.shape[1] % ROW_MULTIPLE))
        self._patch_bias = encoder.patch_emb.bias.detach()
        self._positions = encoder.pos_emb.detach()[0]
        plain = [block for block in encoder.blocks if isinstance(block, EncoderBlock)]
        self._blocks = [FusedBlock(block, self._head_size, linear) for block in plain]
        norms = [Norm.of(layer, fp8=fp8) for block in plain for layer in (block.ln1, block.ln2)]
        self._first_norm, *following = *norms, Norm.of(encoder.post_ln, fp8=False)
        adding = [layer for block in self._blocks for layer in (block.proj, block.fc2)]
        biases = [layer.bias.detach() for block in plain for layer in (block.attn.proj, block.mlp.fc2)]
        joins, _ = join_layers(adding, biases, following)
        self._joins = list(zip(joins[::2], joins[1::2], strict=True))
        mlp: MLP = encoder.proj_mlp
        self._proj_fc1 = linear(mlp.fc1.weight, mlp.fc1.bias)
        self._proj_fc2 = linear(mlp.fc2.weight, mlp.fc2.bias)

    def encode(self, pixels: Tensor) -> Tensor:
        patches = patch_rows(pixels, self._table, self._config.enc_patch_size, self._patch_weight.shape[1])
        x = functional.linear(patches, self._patch_weight)  # [n P, D]
        x, rows = self._first_norm(x, self._positions, self._patch_bias)
        for block, (join_attention, join_mlp) in zip(self._blocks, self._joins, strict=True):
            attended = attend_heads(block.qkv(rows), len(pixels), self._head_size, self._scale)
            x, rows = join_attention(x, self._rows(attended))
            x, rows = join_mlp(x, block.fc1.gelu(rows))
        return rows[0].view(len(pixels), *self._positions.shape)

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        joined = join_views(features, tiling, self._config.grid, self._config.overlap_margin)
        return self._proj_fc2(self._proj_fc1.gelu(self._rows(joined)))


@torch.inference_mode()
def fastest_head_size(encoder: VisionEncoder) -> int:
    """Return the faster size of a head in the attention: its own, or padded with zeros to a multiple of 16.

    Moondream 2 has heads of 72, for which not every library has a kernel. On the CPU heads keep their size.
    """
    config = encoder.config
    own = config.enc_dim // config.enc_n_heads
    sizes = sorted({own, -(-own // HEAD_MULTIPLE) * HEAD_MULTIPLE})
    block = encoder.blocks[0] if len(encoder.blocks) else None
    if not encoder.pos_emb.is_cuda or len(sizes) == 1 or not isinstance(block, EncoderBlock):
        return own
    x = torch.randn(_TIMED_CROPS * config.n_patches, config.enc_dim).to(encoder.pos_emb)
    runs: dict[tuple[int, SDPBackend], Callable[[], None]] = {}
    for size in sizes:
        fused = FusedBlock(block, size, WideLinear)
        for backend in BACKENDS:
            run = partial(_attend_repeatedly, fused, x, backend, size, own)
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


def _attend_repeatedly(block: FusedBlock, x: Tensor, backend: SDPBackend, size: int, own: int) -> None:
    with only_backend(backend):
        for _ in range(_TIMED_REPEATS):
            block.proj((attend_heads(block.qkv((x,)), _TIMED_CROPS, size, own**-0.5),))


def attend_heads(qkv: Tensor, crops: int, head_size: int, scale: float) -> Tensor:
    """Attention within each crop: queries, keys and values ``[n P, 3 H D]`` to ``[n P, H D]``."""
    split = qkv.view(crops, len(qkv) // crops, 3, -1, head_size)
    q, k, v = split.transpose(1, 3).unbind(2)  # [n, H, P, D]
    out = functional.scaled_dot_product_attention(q, k, v, scale=scale)
    return out.transpose(1, 2).reshape(len(qkv), -1)


def _pad_heads(parts: Tensor, size: int) -> Tensor:
    """Pad heads ``[heads, D, ...]`` with zeros: queries, keys and values then have zeros there too."""
    return functional.pad(parts, (0, 0, 0, size - parts.shape[1]))

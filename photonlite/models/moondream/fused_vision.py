"""The image encoder as it serves: the computation of :class:`VisionEncoder` in seven kernels a block.

```
crops ─ patches ─ patch_emb ─┐
                             + positions, bias ─ norm ─ qkv ─ attention ─ proj ─┐
                 ┌──────────────────────────────────────────────────────────────┘
                 + bias ─ norm ─ fc1, GELU ─ fc2 ─┐
                                                  + bias ─ norm ─ qkv of the next block
```

Of `proj, + bias, norm` the product adds or the norm; see `fused_layers`. With FP8 every norm, GELU and attention output
comes quantised row by row, and so do the weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.fp8 import quantise_rows
from photonlite.kernels.vision import join_views, patch_rows
from photonlite.models.layers import MLP
from photonlite.models.moondream.fused_layers import Fp8Linear, Linear, Rows, WideLinear, joins_of, norm_of
from photonlite.models.moondream.vision import Block, VisionEncoder, normalised

ROW_MULTIPLE = 16
"""Rows of patches are filled up to a multiple of this, with which products of 16-bit numbers are quickest."""


class FusedBlock:
    """One block's layers; the biases of those that add to the residual stream are not theirs.

    Args:
        block: Of the encoder.
        head_size: Numbers of a head, zeros behind its own: what the attention is quickest with.
        linear: Makes the layers.
    """

    def __init__(self, block: Block, head_size: int, linear: Callable[[Tensor, Tensor | None], Linear]) -> None:
        attn, heads = block.attn, block.attn.heads
        weight, bias, proj = attn.qkv.weight.detach(), attn.qkv.bias.detach(), attn.proj.weight.detach()
        own = len(proj) // heads
        if head_size > own:
            weight = _wider_heads(weight.view(3 * heads, own, -1), head_size).flatten(0, 1)
            bias = _wider_heads(bias.view(3 * heads, own, 1), head_size).flatten()
            proj = _wider_heads(proj.view(-1, own, 1), head_size).view(len(proj), -1)
        self.qkv = linear(weight, bias)
        self.proj = linear(proj, None)
        self.fc1 = linear(block.mlp.fc1.weight, block.mlp.fc1.bias)
        self.fc2 = linear(block.mlp.fc2.weight, None)


class FusedEncoder:
    """Encodes crops with the weights of a plain encoder; see `models.base.CropEncoder`.

    Args:
        encoder: In evaluation mode. Its weights are used as they are, but for those that FP8 or a wider head changes.
        fp8: Whether linear layers multiply e4m3 numbers.
        head_size: Numbers of a head in the attention, at least those it has; None for just those. 72, of Moondream 2,
            fits few kernels; 80 fits more.

    Raises:
        SettingsError: FP8 on a card for matrices whose sizes it cannot multiply.
    """

    def __init__(self, encoder: VisionEncoder, *, fp8: bool = False, head_size: int | None = None) -> None:
        config = encoder.config
        own = config.enc_dim // config.enc_n_heads
        linear: Callable[[Tensor, Tensor | None], Linear] = Fp8Linear if fp8 else WideLinear
        self._config = config
        self._scale = own**-0.5
        self._head_size = head_size or own
        self._rows: Callable[[Tensor], Rows] = quantise_rows if fp8 else _as_rows
        self._table = normalised(torch.arange(256, dtype=torch.uint8, device=encoder.pos_emb.device)).to(
            encoder.pos_emb.dtype
        )
        self._patch_weight = _padded_columns(encoder.patch_emb.weight.detach())
        self._patch_bias = encoder.patch_emb.bias.detach()
        self._positions = encoder.pos_emb.detach()[0]
        plain = _blocks(encoder)
        self._blocks = [FusedBlock(block, self._head_size, linear) for block in plain]
        norms = [norm_of(layer, fp8=fp8) for block in plain for layer in (block.ln1, block.ln2)]
        self._first_norm, *following = *norms, norm_of(encoder.post_ln, fp8=False)
        adding = [layer for block in self._blocks for layer in (block.proj, block.fc2)]
        biases = [layer.bias.detach() for block in plain for layer in (block.attn.proj, block.mlp.fc2)]
        joins, _ = joins_of(adding, biases, following)
        self._joins = list(zip(joins[::2], joins[1::2], strict=True))
        mlp: MLP = encoder.proj_mlp
        self._proj_fc1 = linear(mlp.fc1.weight, mlp.fc1.bias)
        self._proj_fc2 = linear(mlp.fc2.weight, mlp.fc2.bias)

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode crops, each on its own.

        Args:
            pixels: uint8 ``[n, C, C, 3]``.

        Returns:
            Features ``[n, P, D]``.
        """
        patches = patch_rows(pixels, self._table, self._config.enc_patch_size, self._patch_weight.shape[1])
        x = functional.linear(patches, self._patch_weight)  # [n P, D]
        x, rows = self._first_norm(x, self._positions, self._patch_bias)
        for block, (join_attention, join_mlp) in zip(self._blocks, self._joins, strict=True):
            attended = attend_heads(block.qkv(rows), len(pixels), self._head_size, self._scale)
            x, rows = join_attention(x, self._rows(attended))
            x, rows = join_mlp(x, block.fc1.gelu(rows))
        return rows[0].view(len(pixels), *self._positions.shape)

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Join global and local features of one image and map them to embeddings; see `VisionEncoder.project`."""
        joined = join_views(features, tiling, self._config.grid, self._config.overlap_margin)
        return self._proj_fc2(self._proj_fc1.gelu(self._rows(joined)))


def attend_heads(qkv: Tensor, crops: int, head_size: int, scale: float) -> Tensor:
    """Let the patches of each crop see each other.

    Args:
        qkv: Queries, keys and values, ``[n P, 3 H D]``.
        crops: n.
        head_size: D.
        scale: Of the scores.

    Returns:
        ``[n P, H D]``.
    """
    split = qkv.view(crops, len(qkv) // crops, 3, -1, head_size)
    q, k, v = split.transpose(1, 3).unbind(2)  # [n, H, P, D]
    out = functional.scaled_dot_product_attention(q, k, v, scale=scale)
    return out.transpose(1, 2).reshape(len(qkv), -1)


def _as_rows(x: Tensor) -> Rows:
    return (x,)


def _blocks(encoder: VisionEncoder) -> list[Block]:
    return [block for block in encoder.blocks if isinstance(block, Block)]


def _wider_heads(parts: Tensor, size: int) -> Tensor:
    """Fill heads, ``[heads, D, ...]``, up with zeros to a size: queries, keys and values then have zeros there too."""
    return functional.pad(parts, (0, 0, 0, size - parts.shape[1]))


def _padded_columns(weight: Tensor) -> Tensor:
    """Give a matrix more columns of zeros, up to a multiple."""
    return functional.pad(weight, (0, -weight.shape[1] % ROW_MULTIPLE))

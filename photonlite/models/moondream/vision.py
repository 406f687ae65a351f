"""The vision encoder: crops are encoded one by one, local features are stitched, pooled and joined with global ones.

```
crops [n, C, C, 3] ── encode ── features [n, P, D] ─┬─ [0] global ────────────── [P, D] ─┐
                                                    └─ [1:] stitch ─ pool to grid [P, D] ┴─ concat ─ proj_mlp ─ [P, dim]
```
P = grid x grid patches a crop. With tiling (1, 1) the local crop has the same pixels as the global one; there is then a
single crop, and its features serve as both.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.models.layers import MLP, SelfAttention, attend, layer_norm
from photonlite.models.moondream.config import VisionConfig


def normalize_pixels(pixels: Tensor) -> Tensor:
    """Map pixel values 0 to 255 to float32 numbers from -1 to 1."""
    return (pixels.float() / 255 - 0.5) / 0.5


class EncoderBlock(nn.Module):
    """A pre-norm transformer block over ``[n, P, D]``."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.ln1 = layer_norm(config.enc_dim)
        self.attn = SelfAttention(config.enc_dim, config.enc_n_heads, config.enc_n_heads)
        self.ln2 = layer_norm(config.enc_dim)
        self.mlp = MLP(config.enc_dim, config.enc_ff_dim, config.enc_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x), attend)
        return x + self.mlp(self.ln2(x))


class VisionEncoder(nn.Module):
    """Patch embedding, transformer, and the projection into the text decoder's space."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config, self.grid = config, config.grid
        self.patch_emb = nn.Linear(config.patch_dim, config.enc_dim)
        self.pos_emb = nn.Parameter(torch.empty(1, config.n_patches, config.enc_dim))
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.enc_n_layers))
        self.post_ln = layer_norm(config.enc_dim)
        self.proj_mlp = MLP(2 * config.enc_dim, config.proj_inner_dim, config.proj_out_dim)

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode crops ``[n, C, C, 3]``, uint8 or normalised floats, to features ``[n, P, D]``."""
        x = self.patch_emb(self._patches(pixels)) + self.pos_emb
        for block in self.blocks:
            x = block(x)
        return self.post_ln(x)

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map one image's features ``[1 + rows * columns, P, D]``, global crop first, to embeddings ``[P, dim]``."""
        overall = features[0]
        local = overall if tiling == (1, 1) else self.pool(self.stitch(features[1:], tiling))
        return self.proj_mlp(torch.cat((overall, local), dim=-1))

    def _patches(self, pixels: Tensor) -> Tensor:
        """Cut ``[n, C, C, 3]`` into patch vectors ``[n, P, 3 * patch * patch]``, channel-major."""
        size, grid = self.config.enc_patch_size, self.grid
        if not pixels.is_floating_point():
            pixels = normalize_pixels(pixels)
        patches = pixels.to(self.patch_emb.weight.dtype).reshape(len(pixels), grid, size, grid, size, -1)
        return patches.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)

    def stitch(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Paste local features ``[rows * columns, P, D]`` into a map ``[H, W, D]``, without margins between crops."""
        grid, margin = self.grid, self.config.overlap_margin
        rows, columns = tiling
        crops = features.reshape(rows, columns, grid, grid, -1)

        def kept(index: int, count: int) -> slice:
            return slice(margin if index > 0 else 0, grid - margin if index < count - 1 else grid)

        lines = [[crops[i, j][kept(i, rows), kept(j, columns)] for j in range(columns)] for i in range(rows)]
        return torch.cat([torch.cat(line, dim=1) for line in lines])

    def pool(self, stitched: Tensor) -> Tensor:
        """Average a map ``[H, W, D]`` into ``[P, D]`` over adaptive, overlapping bins."""
        pooled = functional.adaptive_avg_pool2d(stitched.permute(2, 0, 1), (self.grid, self.grid))
        return pooled.permute(1, 2, 0).flatten(0, 1)

"""The vision tower, SigLIP, and the linear layer behind it: from patches to embeddings of the decoder.

```
patches ── linear ── + positions ── x + attention(norm1(x)) ── x + mlp(norm2(x)) ── ... ── norm ── linear ──> embeddings
```
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from photonlite.models.layers import MLP, attend
from photonlite.models.paligemma.config import VisionConfig
from photonlite.models.paligemma.images import MEAN, STD


class VisionBlock(nn.Module):
    """A transformer layer whose positions all attend to each other."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        dim = config.dim
        self.heads = config.heads
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=config.norm_eps) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.mlp = MLP(dim, config.ff_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, P, dim]`` to the same shape."""
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        x = x + self.out(attend(q, k, v).flatten(2))
        return x + self.mlp(self.norm2(x))


class VisionTower(nn.Module):
    """Patch embedding, transformer and projection; created without values."""

    def __init__(self, config: VisionConfig, out_dim: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(config.grid**2, config.dim))
        self.patch_embed = nn.Linear(3 * config.patch**2, config.dim)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.project = nn.Linear(config.dim, out_dim)

    def encode(self, patches: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
        """Map the patches of whole images, uint8 ``[P, bytes]``, to embeddings ``[1, P, dim]``."""
        images = self.whole(patches).view(-1, len(self.positions), patches.shape[1])
        return self(normalize(images).to(self.patch_embed.weight.dtype)).flatten(0, 1)[None]

    def whole(self, patches: Tensor) -> Tensor:
        """Return the patches of complete images; what measures memory may leave an incomplete one."""
        return patches[: len(patches) // len(self.positions) * len(self.positions)]

    def encoding(self, grids: Sequence[tuple[int, int]]) -> Callable[[Tensor], Tensor]:
        return partial(self.encode, grids=grids)

    def forward(self, patches: Tensor) -> Tensor:
        """Map normalised patches ``[B, P, 3 * patch * patch]`` of images to embeddings ``[B, P, dim]``."""
        x = self.patch_embed(patches) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.project(self.norm(x))


def normalize(pixels: Tensor) -> Tensor:
    """Map uint8 to what the tower reads, float32."""
    return (pixels.float() / 255 - MEAN) / STD

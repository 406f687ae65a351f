"""Coordinates and sizes: numbers to embeddings (Fourier features), hidden states to logits over bins.

Sizes are on a logarithmic scale of ten octaves, coordinates on a linear one:

```
coordinate of bin k of n:  k / n                       (the public reference's rule)
size of bin k of n:        2 ** (10 k / (n - 1) - 10)  from 1/1024 to 1
```
"""

import math

import torch
from torch import Tensor, nn

from photonlite.models.layers import MLP, layer_norm
from photonlite.models.moondream.config import RegionConfig

SIZE_OCTAVES = 10


def coord_from_bin(index: Tensor, bins: int) -> Tensor:
    """Return the coordinate in [0, 1) of each bin, float32."""
    return index.float() / bins


def size_from_bin(index: Tensor, bins: int) -> Tensor:
    """Return the width or height in [1/1024, 1] of each bin, float32."""
    # In float64: float32 powers differ in their last bit between vector and scalar instructions of some processors.
    return torch.exp2(index.double() * (SIZE_OCTAVES / (bins - 1)) - SIZE_OCTAVES).float()


def fourier_features(value: Tensor, frequencies: Tensor) -> Tensor:
    """Fourier features of Tancik et al. (2020): ``[cos(2 pi v W), sin(2 pi v W)]``.

    v ``[N, d]`` and W ``[d, F]`` give ``[N, 2 F]`` in the type of W, that of the product in the reference too.
    """
    angle = (2 * math.pi * value.to(frequencies.dtype)) @ frequencies
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class RegionHeads(nn.Module):
    """Encoders and decoders of coordinates and sizes."""

    def __init__(self, config: RegionConfig) -> None:
        super().__init__()
        self.config = config
        self.coord_features = nn.Parameter(torch.empty(1, config.coord_feat_dim // 2))
        self.size_features = nn.Parameter(torch.empty(2, config.size_feat_dim // 2))
        self.coord_encoder = nn.Linear(config.coord_feat_dim, config.dim)
        self.size_encoder = nn.Linear(config.size_feat_dim, config.dim)
        self.coord_decoder = self._decoder(config.coord_out_dim)
        self.size_decoder = self._decoder(config.size_out_dim)
        self.ln = layer_norm(config.dim) if config.norm else nn.Identity()

    def _decoder(self, out_dim: int) -> nn.Module:
        if self.config.decoder == "linear":
            return nn.Linear(self.config.dim, out_dim)
        return MLP(self.config.dim, self.config.inner_dim, out_dim)

    def encode_coord(self, value: Tensor) -> Tensor:
        """Embed coordinates ``[N]`` in [0, 1] as ``[N, dim]``."""
        return self.coord_encoder(fourier_features(value[:, None], self.coord_features))

    def encode_size(self, value: Tensor) -> Tensor:
        """Embed (width, height) pairs ``[N, 2]`` in [0, 1] as ``[N, dim]``."""
        return self.size_encoder(fourier_features(value, self.size_features))

    def coord_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over coordinate bins ``[..., bins]``."""
        return self.coord_decoder(self.ln(hidden))

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits ``[..., 2, bins]``: width first, then height."""
        return self.size_decoder(self.ln(hidden)).unflatten(-1, (2, -1))

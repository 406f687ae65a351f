"""What the runner needs of a model family: a shape, an image encoder, embeddings, a forward pass and heads.

A runner never names a family. It embeds :class:`~photonlite.request.Token` values, runs `forward` with an attention
that owns the cache, and reads the heads of the raw hidden state at the last position.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from photonlite.images.crops import CropSpec
from photonlite.models.layers import Attention


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a cache and a plan need to know.

    Attributes:
        layers: Decoder blocks.
        kv_heads: Key/value heads of a block.
        head_dim: Numbers in a head.
        max_context: Positions a sequence may have.
        prefix_length: Positions of BOS and one picture: a block in which every position sees every other.
        bos_id: The id at position 0.
        dim: Numbers of a hidden state.
        vocab_size: Ids that logits speak of.
    """

    layers: int
    kv_heads: int
    head_dim: int
    max_context: int
    prefix_length: int
    bos_id: int
    dim: int
    vocab_size: int


class CropEncoder(Protocol):
    """A model's image encoder in its two stages, of which the first may run crop group by crop group."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Map crops, uint8 ``[n, C, C, 3]``, to features ``[n, P, D]``, each crop on its own."""
        ...

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map the features of one picture's crops to embeddings ``[prefix_length - 1, dim]``."""
        ...


class Model(Protocol):
    """One family's network. Values in [0, 1] and bins are float32 and int64 on the model's device."""

    @property
    def shape(self) -> ModelShape:
        """Sizes of cache and context."""
        ...

    @property
    def crop_spec(self) -> CropSpec:
        """How a picture is cut for :meth:`encode_image`."""
        ...

    @property
    def vision(self) -> CropEncoder:
        """The image encoder, whose first stage may take the crops of several pictures at once."""
        ...

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map crops, uint8 ``[n, C, C, 3]``, to embeddings ``[prefix_length - 1, dim]``."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids ``[...]`` as ``[..., dim]``."""
        ...

    def embed_coordinates(self, values: Tensor) -> Tensor:
        """Embed coordinates ``[N]`` as ``[N, dim]``."""
        ...

    def embed_sizes(self, values: Tensor) -> Tensor:
        """Embed widths and heights ``[N, 2]`` as ``[N, dim]``."""
        ...

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to raw hidden states ``[B, T, dim]``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over ids ``[..., vocab]``."""
        ...

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over coordinate bins ``[..., bins]``."""
        ...

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over width and height bins ``[..., 2, bins]``."""
        ...

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """Give the coordinate of each bin."""
        ...

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        """Give the width or height of each bin; bins are spaced evenly over `size_octaves` octaves that end at 1."""
        ...

    @property
    def size_octaves(self) -> float:
        """Octaves that the bins of a size span."""
        ...

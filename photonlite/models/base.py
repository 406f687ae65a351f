"""What the runner needs of a model family: a shape, an image encoder, embeddings, a forward pass and heads.

A runner never names a family. It embeds :class:`~photonlite.request.Token` values, runs `forward` with an attention
that owns the cache, and reads the heads of the raw hidden state at the last position.
"""

from collections.abc import Sequence
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
        prefix_length: Positions of BOS and one image: a block in which every position sees every other.
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


@dataclass(frozen=True, slots=True)
class Head:
    """A head as data: linear layers behind a norm, with the tanh approximation of GELU between them.

    Attributes:
        norm: Weight ``[dim]``, bias ``[dim]`` and eps of a layer norm in front; None where there is none.
        layers: Weight ``[out, in]`` and bias ``[out]`` of each.
    """

    norm: tuple[Tensor, Tensor, float] | None
    layers: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads as data: they map raw hidden states ``[B, dim]`` to what the methods of the model do.

    Attributes:
        text: To ``[B, vocab]``.
        coordinate: To ``[B, bins]``.
        size: To ``[B, 2 bins]``, width first.
    """

    text: Head
    coordinate: Head
    size: Head


@dataclass(frozen=True, slots=True)
class InputWeights:
    """What words and sizes are embedded with, as data: sizes go through Fourier features and a linear layer.

    Attributes:
        words: ``[vocab, dim]``.
        frequencies: ``[2, F]``, of :meth:`Model.embed_sizes`; features are cosines before sines of ``2 pi v W``.
        weight: ``[dim, 2 F]``.
        bias: ``[dim]``.
    """

    words: Tensor
    frequencies: Tensor
    weight: Tensor
    bias: Tensor


class KvPages(Protocol):
    """Keys and values of all layers, in pages."""

    @property
    def scales(self) -> Sequence[tuple[float, float]]:
        """Of keys and of values of each layer: what is stored in 8 bits is a number divided by them."""
        ...

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Give one layer's keys and values, each ``[pages, page, H_kv, D]``, written in place."""
        ...


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Prompts of several rows on one axis of T positions; int32, on the model's device.

    Attributes:
        positions: ``[T]``, of any stride: of each within its row.
        slots: ``[T]``, of any stride: page * page size + place of its keys and values.
        tiles: ``[N, 5]``: the axis cut into queries that are worked on together; see `kernels.columns`.
        table: ``[R, P]``: pages of each row.
        last: ``[R]``: where each row's last position stands on the axis; anywhere for an unused row.
        lengths: ``[R]``: how many positions each row has by then; 0 for an unused row.
    """

    positions: Tensor
    slots: Tensor
    tiles: Tensor
    table: Tensor
    last: Tensor
    lengths: Tensor


class PromptDecoder(Protocol):
    """A decoder that runs prompts of several rows in one pass, without a batch axis and without waiting."""

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Map embeddings ``[T, dim]`` to raw hidden states of the rows' last positions, ``[R, dim]``.

        Keys and values of all positions are written. What lies behind the positions of `tiles` is padding, and an
        unused row's state means nothing.
        """
        ...

    def activation_bytes(self, positions: int) -> int:
        """Estimate what a pass over so many positions takes besides its input: not less than it does."""
        ...


@dataclass(frozen=True, slots=True)
class NextPositions:
    """The next position of each of B sequences; int32, on the model's device.

    Attributes:
        positions: ``[B]``, of any stride.
        slots: ``[B]``, of the same stride: page * page size + place of its keys and values.
        table: ``[B, P]``: pages of each sequence, rows contiguous.
    """

    positions: Tensor
    slots: Tensor
    table: Tensor


class StepDecoder(Protocol):
    """A decoder that takes one position of each sequence, without waiting for the device."""

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        """Map embeddings ``[B, dim]``, which it may overwrite, to raw hidden states ``[B, dim]``.

        Keys and values of the positions are written.
        """
        ...


class CropEncoder(Protocol):
    """A model's image encoder in its two stages, of which the first may run crop group by crop group."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Map crops, uint8 ``[n, C, C, 3]``, to features ``[n, P, D]``, each crop on its own."""
        ...

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map the features of one image's crops to embeddings ``[prefix_length - 1, dim]``."""
        ...


class Model(Protocol):
    """One family's network. Values in [0, 1] and bins are float32 and int64 on the model's device."""

    @property
    def shape(self) -> ModelShape:
        """Sizes of cache and context."""
        ...

    @property
    def crop_spec(self) -> CropSpec:
        """How an image is cut for :meth:`encode_image`."""
        ...

    @property
    def vision(self) -> CropEncoder:
        """The image encoder, whose first stage may take the crops of several images at once."""
        ...

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """Give the image encoder as it serves fastest on its device, with the same parameters.

        Args:
            fp8: Whether linear layers multiply e4m3 numbers.

        Raises:
            SettingsError: FP8 on a card for a model whose sizes it cannot multiply.
        """
        ...

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """Give the decoder for prompts on one axis; None where `forward` serves prompts as well.

        Args:
            fp8: Whether linear layers multiply e4m3 numbers.

        Raises:
            SettingsError: FP8 on a card for a model whose sizes it cannot multiply.
        """
        ...

    def step_decoder(self) -> StepDecoder | None:
        """Give the decoder for decode steps; None where `forward` serves them as well."""
        ...

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map crops, uint8 ``[n, C, C, 3]``, to embeddings ``[prefix_length - 1, dim]``."""
        ...

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        """Estimate the root mean square of each layer's keys and of its values, from the weights alone.

        A cache in 8-bit numbers is scaled by it: right within a factor of ten is good enough.
        """
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

    @property
    def heads(self) -> Heads | None:
        """The heads as data, for fused kernels; None where they have another form."""
        ...

    @property
    def input_weights(self) -> InputWeights | None:
        """What words and sizes are embedded with, for a fused kernel; None where it has another form."""
        ...

"""What the runner needs of a model family: a shape, an image encoder, embeddings, a forward pass and heads.

The runner never names a family. It embeds :class:`~photonlite.request.Token` values, runs `forward` with an attention
that owns the cache, and applies the heads to the raw hidden state at the last position.

Sizes: B sequences, T positions, R rows of a packed prompt, P pages or patches, `dim` of a hidden state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from photonlite.images.crops import CropSpec
from photonlite.models.layers import Attention


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of cache and context.

    `prefix_length` counts BOS and one image: a block in which every position attends to every other.
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
        norm: Weight ``[dim]``, bias ``[dim]`` and eps of a layer norm; None where there is none.
        layers: Weight ``[out, in]`` and bias ``[out]`` of each.
    """

    norm: tuple[Tensor, Tensor, float] | None
    layers: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads as data: from raw hidden states ``[B, dim]`` to what the model's methods return."""

    text: Head  # to [B, vocab]
    coordinate: Head  # to [B, bins]
    size: Head  # to [B, 2 bins], width first


@dataclass(frozen=True, slots=True)
class InputWeights:
    """Embeddings of tokens and sizes as data; sizes go through Fourier features ``cos, sin(2 pi v W)`` and a linear."""

    words: Tensor  # [vocab, dim]
    frequencies: Tensor  # W: [2, F]
    weight: Tensor  # [dim, 2 F]
    bias: Tensor  # [dim]


class KvPages(Protocol):
    """Keys and values of all layers, in pages."""

    @property
    def scales(self) -> Sequence[tuple[float, float]]:
        """Of keys and of values of each layer: an 8-bit cache stores numbers divided by them."""

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one layer's keys and values, each ``[pages, page, H_kv, D]``, which are written in place."""


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Prompts of several rows on one axis of T positions; int32, on the model's device."""

    positions: Tensor  # [T], of any stride: position within the row
    slots: Tensor  # [T], of any stride: page * page size + offset of keys and values
    tiles: Tensor  # [N, 5]: the axis cut into tiles of queries; see `kernels.columns`
    table: Tensor  # [R, P]: pages of each row
    last: Tensor  # [R]: index of each row's last position on the axis; any for an unused row
    lengths: Tensor  # [R]: positions of each row up to there; 0 for an unused row


class PromptDecoder(Protocol):
    """A decoder that runs prompts of several rows in one pass, without a batch axis and without waiting."""

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Map embeddings ``[T, dim]`` to raw hidden states of the rows' last positions, ``[R, dim]``.

        Keys and values of all positions are written. Positions outside `tiles` are padding, and an unused row's state
        is undefined.
        """

    def activation_bytes(self, positions: int) -> int:
        """Return an upper bound of the memory of a pass over so many positions, without its input."""


@dataclass(frozen=True, slots=True)
class NextPositions:
    """The next position of each of B sequences; int32, on the model's device."""

    positions: Tensor  # [B], of any stride
    slots: Tensor  # [B], of the same stride: page * page size + offset of keys and values
    table: Tensor  # [B, P]: pages of each sequence, rows contiguous


class StepDecoder(Protocol):
    """A decoder that computes one position of each sequence, without waiting for the device."""

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        """Map embeddings ``[B, dim]``, which may be overwritten, to raw hidden states ``[B, dim]``, and write KV."""


class CropEncoder(Protocol):
    """An image encoder in two stages, of which the first may run crop group by crop group."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Map crops, uint8 ``[n, C, C, 3]``, to features ``[n, P, D]``, each crop independently."""

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map the features of one image's crops to embeddings ``[prefix_length - 1, dim]``."""


class Model(Protocol):
    """One family's network. Values in [0, 1] and bins are float32 and int64 on the model's device.

    Where a method takes `fp8`, linear layers multiply e4m3 numbers if it is set; it raises SettingsError on a card
    whose kernels cannot multiply the model's sizes.
    """

    @property
    def shape(self) -> ModelShape:
        """Sizes of cache and context."""

    @property
    def crop_spec(self) -> CropSpec:
        """How an image is cut for :meth:`encode_image`."""

    @property
    def vision(self) -> CropEncoder:
        """The image encoder in operations of PyTorch; the first stage may take the crops of several images."""

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """Return the fastest image encoder for the device, with the same parameters."""

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """Return the decoder for packed prompts; None where `forward` serves prompts as well."""

    def step_decoder(self) -> StepDecoder | None:
        """Return the decoder for decode steps; None where `forward` serves them as well."""

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map crops, uint8 ``[n, C, C, 3]``, to embeddings ``[prefix_length - 1, dim]``."""

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        """Estimate the root mean square of each layer's keys and values from the weights, within a factor of ten.

        Scales of an 8-bit cache are derived from it.
        """

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids ``[...]`` as ``[..., dim]``."""

    def embed_coordinates(self, values: Tensor) -> Tensor:
        """Embed coordinates ``[N]`` as ``[N, dim]``."""

    def embed_sizes(self, values: Tensor) -> Tensor:
        """Embed widths and heights ``[N, 2]`` as ``[N, dim]``."""

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to raw hidden states ``[B, T, dim]``."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over ids ``[..., vocab]``."""

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over coordinate bins ``[..., bins]``."""

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over width and height bins ``[..., 2, bins]``."""

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """Return the coordinate of each bin."""

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        """Return the width or height of each bin; bins are spaced evenly over `size_octaves` octaves up to 1."""

    @property
    def size_octaves(self) -> float:
        """Octaves that the bins of a size span."""

    @property
    def heads(self) -> Heads | None:
        """The heads as data, for fused kernels; None where they have another form."""

    @property
    def input_weights(self) -> InputWeights | None:
        """The embeddings of tokens and sizes as data, for a fused kernel; None where they have another form."""

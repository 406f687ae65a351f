"""What the runner needs of a model family: a shape, an image encoder, embeddings, a forward pass and heads.

Sizes: B sequences, T positions, R rows of a packed prompt, P pages or patches, `dim` of a hidden state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from photonlite.images.crops import CropSpec
from photonlite.models.layers import Attention


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of cache and context; the `prefix_length` positions of BOS and one image all attend to each other."""

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
    """A head as data: linear layers behind a norm, with the tanh approximation of GELU between them."""

    # Weight [dim], bias [dim] and eps of a layer norm, if there is one; without a bias it is an RMS norm.
    norm: tuple[Tensor, Tensor | None, float] | None
    layers: tuple[tuple[Tensor, Tensor | None], ...]  # weight [out, in] and bias [out] of each


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads as data: from raw hidden states ``[B, dim]`` to what the model's methods return."""

    text: Head  # to [B, vocab]
    coordinate: Head | None = None  # to [B, bins]; None where the model has no `numbers`
    size: Head | None = None  # to [B, 2 bins], width first; likewise


@dataclass(frozen=True, slots=True)
class InputWeights:
    """Embeddings of tokens and sizes as data; sizes go through Fourier features ``cos, sin(2 pi v W)`` and a linear."""

    words: Tensor  # [vocab, dim]
    frequencies: Tensor  # W: [2, F]
    weight: Tensor  # [dim, 2 F]
    bias: Tensor  # [dim]


class KvPages(Protocol):
    """Pages ``[pages, page, H_kv, D]`` of all layers, written in place; FP8 stores numbers divided by `scales`."""

    @property
    def scales(self) -> Sequence[tuple[float, float]]: ...
    def layer(self, index: int) -> tuple[Tensor, Tensor]: ...  # keys, values


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Prompts of several rows on one axis of T positions; int32, on the model's device."""

    positions: Tensor  # [T], of any stride: position within the row
    slots: Tensor  # [T], of any stride: page * page size + offset of keys and values
    tiles: Tensor  # [N, 5]: the axis cut into tiles of queries; see `kernels.columns`
    table: Tensor  # [R, P]: pages of each row
    last: Tensor  # [R]: index of each row's last position on the axis; any for an unused row
    lengths: Tensor  # [R]: positions of each row up to there; 0 for an unused row
    turns: Tensor | None = None  # [T, 3]: time, height and width that rotate each position; unless given, `positions`
    deepstack: Tensor | None = None  # [D, T, dim]: added behind each of the first layers, 0 where there is no image


class PromptDecoder(Protocol):
    """A decoder that runs prompts of several rows in one pass, without a batch axis and without waiting.

    It maps embeddings ``[T, dim]`` to the rows' last raw hidden states ``[R, dim]``. Positions outside `tiles` are
    padding; an unused row's state is undefined. `activation_bytes` is an upper bound for a pass, without its input.
    """

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor: ...
    def activation_bytes(self, positions: int) -> int: ...


@dataclass(frozen=True, slots=True)
class NextPositions:
    """The next position of each of B sequences; int32, on the model's device."""

    positions: Tensor  # [B], of any stride
    slots: Tensor  # [B], of the same stride: page * page size + offset of keys and values
    table: Tensor  # [B, P]: pages of each sequence, rows contiguous
    turns: Tensor | None = None  # [B], of the same stride: what rotates each position; unless given, `positions`


class StepDecoder(Protocol):
    """Maps the next embedding of each sequence, ``[B, dim]``, to raw hidden states; may overwrite it, does not wait."""

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor: ...


class CropEncoder(Protocol):
    """An image encoder: `encode` maps crops, uint8 ``[n, C, C, 3]``, to features ``[n, P, D]``, each independently.

    `project` maps the features of one image's crops to embeddings ``[prefix_length - 1, dim]``.
    """

    def encode(self, pixels: Tensor) -> Tensor: ...
    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor: ...


class NumberHeads(Protocol):
    """Coordinates and sizes as numbers, which some families read and write beside words.

    Values in [0, 1] and bins are float32 and int64 on the model's device.
    """

    def embed_coordinates(self, values: Tensor) -> Tensor: ...  # [N] -> [N, dim]
    def embed_sizes(self, values: Tensor) -> Tensor: ...  # widths and heights [N, 2] -> [N, dim]

    # From raw hidden states [..., dim]:
    def coordinate_logits(self, hidden: Tensor) -> Tensor: ...  # [..., bins]
    def size_logits(self, hidden: Tensor) -> Tensor: ...  # [..., 2, bins], width first

    # From bins to values; those of a size are spaced evenly over `size_octaves` octaves up to 1:
    def coordinate_of(self, index: Tensor, bins: int) -> Tensor: ...
    def size_of(self, index: Tensor, bins: int) -> Tensor: ...
    @property
    def size_octaves(self) -> float: ...


class Model(Protocol):
    """One family's network.

    The fused parts are None where `forward`, or the model's own methods, serve as well. With `fp8` linear layers
    multiply e4m3 numbers; SettingsError on a card whose kernels cannot multiply the model's sizes.
    """

    @property
    def shape(self) -> ModelShape: ...
    @property
    def crop_spec(self) -> CropSpec: ...
    @property
    def vision(self) -> CropEncoder: ...  # in operations of PyTorch; the first stage takes crops of several images
    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder: ...  # the fastest one for the device
    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None: ...
    def step_decoder(self) -> StepDecoder | None: ...
    def plain_parts(self) -> Mapping[str, str]: ...  # what runs in operations of PyTorch on this device, and why
    @property
    def heads(self) -> Heads | None: ...
    @property
    def input_weights(self) -> InputWeights | None: ...
    @property
    def numbers(self) -> NumberHeads | None: ...  # None: tokens are words only

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        """Estimate the root mean square of each layer's keys and values from the weights, within a factor of ten."""

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor: ...  # crops -> [prefix_length - 1, dim]
    def embed(self, ids: Tensor) -> Tensor: ...  # [...] -> [..., dim]

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to raw hidden states ``[B, T, dim]``."""

    def logits(self, hidden: Tensor) -> Tensor: ...  # raw hidden states [..., dim] -> [..., vocab]


_AnyBase: Any = object  # type checkers then accept a view wherever a model is expected


class ModelView(_AnyBase):  # type: ignore[misc]
    """Forwards to a model every member that a subclass does not define."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def numbers(self) -> Any:
        return None if self._model.numbers is None else self  # with what a subclass defines of them


class UnfusedModel(ModelView):
    """A model without its fused kernels: every operation is one of PyTorch's."""

    heads = input_weights = None

    def plain_parts(self) -> dict[str, str]:
        reason = "the engine setting 'fused' is off"
        return dict.fromkeys(("image encoder", "prompts", "decode steps"), reason)

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        vision: CropEncoder = self._model.vision
        return vision

    def prompt_decoder(self, *, fp8: bool = False) -> None: ...
    def step_decoder(self) -> None: ...

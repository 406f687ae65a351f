"""What the runner needs of a model family: a shape, an image encoder, embeddings, a forward pass and heads.

Sizes: B sequences, T positions, R rows of a packed prompt, P pages or patches, `dim` of a hidden state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from PIL import Image
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.image_inputs import PatchImage
from photonlite.images.crops import Allocator, CropSpec
from photonlite.images.resize import RunTasks
from photonlite.kernels.quantised import Weight
from photonlite.models.layers import Attention
from photonlite.sequence import PromptTurns

AnyDecoder = TypeVar("AnyDecoder", covariant=True)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of cache and context.

    In some families BOS and one image come first, in `prefix_length` positions that all attend to each other. In the
    others prompts say where images stand, and everything attends to what comes before it; or, with `prefix_lm`, each
    position of a prompt to all others, and those of the answer to what comes before them.
    """

    layers: int
    kv_heads: int
    head_dim: int
    max_context: int
    prefix_length: int | None  # None where prompts say where images stand, and how long these are depends on them
    bos_id: int | None  # None where prompts begin without one
    dim: int
    vocab_size: int
    axes: int = 0  # of rotary positions; 0 where these are the positions
    prefix_lm: bool = False
    levels: int = 1  # embeddings of each position of an image: the input's, and what later layers add


@dataclass(frozen=True, slots=True)
class Head:
    """A head as data: linear layers behind a norm, with the tanh approximation of GELU between them."""

    # Weight [dim], bias [dim] and eps of a layer norm, if there is one; without a bias it is an RMS norm.
    norm: tuple[Tensor, Tensor | None, float] | None
    layers: tuple[tuple[Weight, Tensor | None], ...]  # weight [out, in] and bias [out] of each


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads as data: from raw hidden states ``[B, dim]`` to what the model's methods return."""

    text: Head | None  # to [B, vocab]; None where several ranks have a part of it each
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


@runtime_checkable
class AdaptableDecoder(Protocol[AnyDecoder]):
    """A decoder, of steps or of prompts, that can add the terms of adapters in its own kernels."""

    def adapted(self, bank: Any) -> AnyDecoder:
        """Return one that adds all terms that an `adapters.layers.AdapterBank` has places for now.

        It must be called inside the bank's `running`, with an index of slots alone. One of steps takes at most
        `kernels.small_batch_gemm.MAX_ROWS` rows.
        """


class CropEncoder(Protocol):
    """An image encoder: `encode` maps crops, uint8 ``[n, C, C, 3]``, to features ``[n, P, D]``, each independently.

    `project` maps the features of one image's crops to embeddings, one for each of its positions: ``[n, dim]``.
    """

    def encode(self, pixels: Tensor) -> Tensor: ...
    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor: ...


class PatchSpec(Protocol):
    """How images that are encoded as a whole are cut; see `images.pool.ImageSpec`."""

    @property
    def patch_bytes(self) -> int: ...
    @property
    def merge(self) -> int: ...  # patches along a side of one position
    @property
    def position_patches(self) -> int: ...
    @property
    def most_patches(self) -> int: ...  # of the largest image
    @property
    def on_white(self) -> bool: ...  # see `ImageLimits`
    @property
    def sight(self) -> int: ...  # pixels along a side of a square image that is read without being shrunk

    def positions_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of positions that an image of a width and height takes; may raise ImageError."""

    def cut(self, image: Image.Image, *, threads: int, run_tasks: RunTasks, buffer: Allocator) -> PatchImage: ...


class PatchEncoder(Protocol):
    """An encoder of whole images: patches, uint8 ``[P, bytes]``, of images with these rows and columns of patches.

    It returns embeddings of all positions, ``[levels, n, dim]``. Images do not affect each other.
    """

    def encode(self, patches: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor: ...

    def encoding(self, grids: Sequence[tuple[int, int]]) -> Callable[[Tensor], Tensor]:
        """Return what encodes patches of images of these sizes; it holds what follows from the sizes alone."""


class NumberHeads(Protocol):
    """Coordinates as numbers, which some families read and write beside words.

    Values in [0, 1] and bins are float32 and int64 on the model's device.
    """

    def embed_coordinates(self, values: Tensor) -> Tensor: ...  # [N] -> [N, dim]
    def coordinate_logits(self, hidden: Tensor) -> Tensor: ...  # raw hidden states [..., dim] -> [..., bins]
    def coordinate_of(self, index: Tensor, bins: int) -> Tensor: ...  # from bins to values
    @property
    def size_octaves(self) -> float: ...  # above 0 where there are sizes too: `SizeHeads`


class SizeHeads(NumberHeads, Protocol):
    """Widths and heights as numbers as well."""

    def embed_sizes(self, values: Tensor) -> Tensor: ...  # [N, 2] -> [N, dim]
    def size_logits(self, hidden: Tensor) -> Tensor: ...  # raw hidden states [..., dim] -> [..., 2, bins], width first
    def size_of(self, index: Tensor, bins: int) -> Tensor: ...  # spaced evenly over `size_octaves` octaves up to 1


def size_heads(numbers: NumberHeads | None) -> SizeHeads | None:
    """Return the heads if they have sizes."""
    return cast(SizeHeads, numbers) if numbers is not None and numbers.size_octaves > 0 else None


class Model(Protocol):
    """One family's network.

    The fused parts are None where `forward`, or the model's own methods, serve as well. With `fp8` linear layers
    multiply e4m3 numbers; SettingsError on a card whose kernels cannot multiply the model's sizes.
    """

    @property
    def shape(self) -> ModelShape: ...
    @property
    def crop_spec(self) -> CropSpec | PatchSpec: ...
    @property
    def vision(self) -> CropEncoder | PatchEncoder: ...  # in operations of PyTorch; which one depends on `crop_spec`
    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder | PatchEncoder: ...  # the fastest one for the device
    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None: ...
    def step_decoder(self, ranks: RankGroup | None = None) -> StepDecoder | None: ...  # for a rank's share of a model
    def plain_parts(self) -> Mapping[str, str]: ...  # what runs in operations of PyTorch on this device, and why
    @property
    def heads(self) -> Heads | None: ...
    @property
    def input_weights(self) -> InputWeights | None: ...
    @property
    def numbers(self) -> NumberHeads | None: ...  # None: tokens are words only

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        """Estimate the root mean square of each layer's keys and values from the weights, within a factor of ten."""

    def embed(self, ids: Tensor) -> Tensor: ...  # [...] -> [..., dim]

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, deepstack: Tensor | None = None) -> Tensor:
        """Map embeddings ``[B, T, dim]`` at positions ``[T]`` or ``[B, T]`` to raw hidden states ``[B, T, dim]``.

        With several axes positions are rotary ones, ``[axes, T]`` or ``[axes, B, T]``. Features of images,
        ``[levels - 1, B, T, dim]``, are given only to a model that has several levels.
        """

    def logits(self, hidden: Tensor) -> Tensor: ...  # raw hidden states [..., dim] -> [..., vocab]

    def turns(self, parts: Sequence[int | tuple[int, int]]) -> PromptTurns | None:
        """Return the rotary positions of a prompt; None with a single axis.

        A part is a number of words, or rows and columns of an image.
        """


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

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder | PatchEncoder:
        vision: CropEncoder | PatchEncoder = self._model.vision
        return vision

    def prompt_decoder(self, *, fp8: bool = False) -> None: ...
    def step_decoder(self, ranks: RankGroup | None = None) -> None: ...

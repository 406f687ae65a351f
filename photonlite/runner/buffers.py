"""Memory on the device that a runner allocates once: the KV cache, and counterparts of the slots' host arrays.

Pages hold old data, NaN included, which must not be read: a probability of 0 times NaN is NaN.

An FP8 cache stores numbers divided by two constant scales a layer. Scales come from the weights alone, so that answers
do not depend on earlier requests. They are powers of two, which change no mantissa. A scaled layer's root mean square
is in [2, 4): a hundred times below e4m3's largest number, 448, and as far above its subnormals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.batch import PageCopy
from photonlite.config import KvDtype
from photonlite.device.base import Array
from photonlite.images.packing import MOST_SCRATCH
from photonlite.kernels.columns import PARAM_COLUMNS, RESULT_COLUMNS
from photonlite.kernels.fp8 import require_fp8
from photonlite.kernels.reference.attention import FP8, indexable
from photonlite.models.base import Model, ModelShape
from photonlite.request import MAX_SCORED
from photonlite.runner.slots import PAGES, SlotShape


@dataclass(frozen=True, slots=True)
class KvFormat:
    """The type of stored keys and values, and in FP8 the scales of keys and of values of each layer."""

    dtype: torch.dtype
    scales: tuple[tuple[float, float], ...] = ()


def kv_format(setting: KvDtype, model: Model, device: torch.device, dtype: torch.dtype) -> KvFormat:
    """Return how keys and values are stored; SettingsError for FP8 on a card without it."""
    if setting == "auto":
        return KvFormat(dtype)
    require_fp8(device, "'kv_dtype' is 'fp8'", "leave kv_dtype at 'auto'")
    return KvFormat(FP8, tuple((fp8_scale(key), fp8_scale(value)) for key, value in model.kv_statistics()))


def fp8_scale(rms: float) -> float:
    """Return the power of two that scales a root mean square into [2, 4); 1 for one that is zero or not finite."""
    if not 0 < rms < math.inf:
        return 1.0
    return 2.0 ** (math.frexp(rms)[1] - 2)


class PagedCache:
    """Keys and values of all sequences, ``[layers, pages, page_size, H_kv, D]``; `pages` includes the scratch page.

    In memory a page lies head by head: what one head reads is contiguous. FP8 stores numbers divided by `scales`.
    """

    def __init__(
        self,
        shape: ModelShape,
        pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
        scales: Sequence[tuple[float, float]] = (),
    ) -> None:
        if scales and (dtype != FP8 or len(scales) != shape.layers):
            raise AssertionError(f"{len(scales)} pairs of scales for {shape.layers} layers in {dtype}")
        size = (shape.layers, pages, shape.kv_heads, page_size, shape.head_dim)
        self.keys = torch.empty(size, device=device, dtype=dtype).transpose(2, 3)
        self.values = torch.empty(size, device=device, dtype=dtype).transpose(2, 3)
        self.page_size = page_size
        self.page_bytes = 2 * self.keys[:, 0].nbytes
        self.scales = tuple(scales) or ((1.0, 1.0),) * shape.layers
        self._layers = tuple(zip(self.keys.unbind(), self.values.unbind(), strict=True))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self._layers[index]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            for cache in map(indexable, (self.keys, self.values)):
                cache[:, copy.target].copy_(cache[:, copy.source])

    def take(self, table: Tensor) -> Tensor:
        """Return a copy of pages, given their numbers, int64 ``[n]``: ``[2, layers, n, H_kv, page_size, D]``."""
        layers, _, *page = indexable(self.keys.transpose(2, 3)).shape
        taken = indexable(self.keys).new_empty((2, layers, len(table), *page))
        for cache, target in zip((self.keys, self.values), taken, strict=True):
            torch.index_select(indexable(cache.transpose(2, 3)), 1, table, out=target)
        return taken.view(self.keys.dtype)

    def put(self, table: Tensor, stored: Tensor) -> None:
        """Write what `take` returned to other pages, in one pass."""
        for cache, pages in zip((self.keys, self.values), stored, strict=True):
            indexable(cache.transpose(2, 3)).index_copy_(1, table, indexable(pages))

    def spoil(self, table: Tensor) -> None:
        """Fill pages with NaN: what should have been put there is missing."""
        for cache in (self.keys, self.values):
            indexable(cache.transpose(2, 3)).index_fill_(1, table, 0x7F if cache.dtype == FP8 else math.nan)

    def close(self) -> None:
        self.keys = self.values = self.keys.new_empty(0)
        self._layers = ()


class Buffers:
    """Device counterparts of a slot's host arrays, see `runner.slots`; zeros stand for rows of the scratch page."""

    def __init__(
        self,
        shape: SlotShape,
        device: torch.device,
        dtype: torch.dtype,
        *,
        dim: int,
    ) -> None:
        def words(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.rows = words(shape.max_rows, PAGES + shape.max_pages)
        self.tokens = words(shape.max_tokens, 3)
        self.packed = words(shape.packed_words(shape.max_tokens))
        self.choices = words(shape.max_rows, PARAM_COLUMNS)
        self.masks = words(shape.max_rows, shape.mask_words)
        self.results = words(shape.max_rows, RESULT_COLUMNS)
        self.scored = words(shape.max_rows, MAX_SCORED)
        self.scores = torch.zeros(shape.max_rows, MAX_SCORED, device=device)
        self.seen = words(shape.max_rows, shape.mask_words)
        self.hidden = torch.zeros(shape.max_rows, dim, dtype=dtype, device=device)  # raw hidden states [B, dim]


class CropBuffers:
    """What an encode launch reads: crops of this shape, or patches, and bytes of whole images.

    Buffers of launches that never overlap may share `scratch`.
    """

    def __init__(
        self, crops: tuple[int, ...], device: torch.device, *, image_bytes: int = 0, scratch: Tensor | None = None
    ) -> None:
        self.crops = torch.zeros(crops, dtype=torch.uint8, device=device)
        self.images = torch.zeros(image_bytes, dtype=torch.uint8, device=device)  # see `images.packing`
        if scratch is None:
            scratch = torch.empty(MOST_SCRATCH if image_bytes else 0, dtype=torch.uint8, device=device)
        self.scratch = scratch  # between the passes of a resize


def crop_buffers(count: int, crops: tuple[int, ...], device: torch.device, image_bytes: int) -> list[CropBuffers]:
    """Return buffers for the slots of one stream."""
    first = [CropBuffers(crops, device, image_bytes=image_bytes)] if count else []
    rest = (CropBuffers(crops, device, image_bytes=image_bytes, scratch=first[0].scratch) for _ in range(count - 1))
    return [*first, *rest]


def transfer(target: Tensor, source: Array) -> None:
    """Copy from the host to the device without waiting; both of one shape and type.

    On the CPU NumPy copies: PyTorch would start OpenMP threads for each calling thread, and with more of them than
    cores every small operation of a decode step takes three times as long.
    """
    if target.is_cuda:
        target.copy_(torch.from_numpy(source), non_blocking=True)
    else:
        target.numpy()[...] = source


def transfer_back(target: Array, source: Tensor) -> None:
    if source.is_cuda:
        torch.from_numpy(target).copy_(source, non_blocking=True)
    else:
        target[...] = source.numpy()

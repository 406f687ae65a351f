"""Images as an engine takes them: cut into crops or patches, or encoded before, behind a reference. No torch."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class CropsLike(Protocol):
    """The crops of one image, as `images.crops` cuts them."""

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """uint8 ``[n, C, C, 3]``, where the device can read it without waiting."""

    @property
    def tiling(self) -> tuple[int, int]:
        """Rows and columns of local crops."""


@dataclass(frozen=True, slots=True, eq=False)
class CutImage:
    """An image's crops, read once from a `CropsLike`, which may be a plug-in; checks shape and type."""

    pixels: npt.NDArray[np.uint8]
    tiling: tuple[int, int]

    def __post_init__(self) -> None:
        pixels = self.pixels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or not len(pixels):
            raise ValueError(f"crops are {pixels.dtype} {list(pixels.shape)}, not uint8 [n, C, C, 3]")

    @property
    def count(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True, slots=True, eq=False)
class UncutImage:
    """An image whose crops the device makes, as `images.packing` packs it and `runner.images` reads it."""

    # uint8 ``[bytes]``, where the device can read it without waiting: pixels ``[H, W, 3]``, then filters.
    packed: npt.NDArray[np.uint8]
    size: tuple[int, int]  # width and height in pixels
    tiling: tuple[int, int]  # rows and columns of local crops
    # Where each filter lies in `packed`: first byte, rows and columns of int32. Two of the whole image, across and
    # down, then two of the local crops.
    filters: tuple[tuple[int, int, int], ...]
    down_first: tuple[bool, ...]  # of each pair, whether the pass down comes before the pass across

    @property
    def count(self) -> int:
        rows, columns = self.tiling
        return 1 if self.tiling == (1, 1) else 1 + rows * columns


UNIT_PATCHES = 1024
"""Patches that count as a crop, of images that are encoded as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchImage:
    """An image that is encoded as a whole, cut into patches."""

    patches: npt.NDArray[np.uint8]  # [P, bytes of a patch], where the device can read it without waiting
    grid: tuple[int, int]  # rows and columns of patches

    @property
    def count(self) -> int:
        return -(-len(self.patches) // UNIT_PATCHES)


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """Numbers in host memory that may be of a type NumPy lacks."""

    data: npt.NDArray[np.uint8]  # uint8 ``[bytes]``, where the device can read it without waiting; never changed
    shape: tuple[int, ...]
    dtype: str  # PyTorch's name of their type, such as "bfloat16"


class PrefixPages(NamedTuple):
    """The pages up to the end of an image, behind those up to the end of the image before it.

    A leading image has all pages that it touches. One inside a prompt has whole pages, with the text before it; its
    last positions may be computed again.
    """

    key: str  # hash of all that stands up to the image's end, of adapter and cache salt
    first: int  # of the pages, by their place in the sequence; `stop` is behind the last
    stop: int
    start: int  # of the positions that they hold; `end` is behind the last
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class StoredPages:
    """Keys and values of the positions up to the end of an image, which were computed before."""

    place: PrefixPages
    numbers: HostTensor  # ``[2, layers, pages, H_kv, page_size, D]``


@dataclass(frozen=True, slots=True, eq=False)
class StoredImage:
    """An image that was encoded before: its embeddings are copied to the device, and no crops are encoded.

    So are pages up to its end, if those of its prompt are stored too; the prompt begins behind them.
    """

    embeddings: HostTensor  # ``[levels, n, dim]``
    pages: StoredPages | None = None

    @property
    def count(self) -> int:
        return 1


ImageInput = CutImage | UncutImage | PatchImage | StoredImage
"""An image as an encode launch takes it; `count` is its share of a launch, in crops."""


def read_crops(crops: CropsLike | UncutImage | PatchImage | StoredImage) -> ImageInput:
    """Read crops once, into plain values; those of a plug-in may raise anything."""
    if isinstance(crops, UncutImage | PatchImage | StoredImage):
        return crops
    return CutImage(crops.pixels, crops.tiling)


class ImageRef(Protocol):
    """An image that a request is about: identified by its content, cut into crops only when they are needed."""

    @property
    def key(self) -> str:
        """Hash of pixels and tenant: tells images apart."""

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels; None where it is not known."""

    @property
    def crops(self) -> CropsLike | UncutImage | PatchImage | StoredImage | None:
        """The crops or patches, what the device makes crops of, or stored embeddings; None until they are there."""

    @property
    def failure(self) -> BaseException | None:
        """Why the crops could not be cut; None while they may come."""

    def request_crops(self, pages: PrefixPages | None) -> None:
        """Begin to cut on another thread, unless that has been done; returns at once.

        `pages` are of use too, where they are stored.
        """

    def drop_crops(self) -> None:
        """Free the crops: the image has been encoded. They may be requested again."""

"""One slot of the pipeline: host arrays that copies read and write, and the events that tie streams together. No torch.

Host arrays are rewritten only while the slot is free: every copy that read them has finished by then, because the copy
of the results, which the commit waited for, was queued behind them.

```
rows      int32 [B, 3 + P]   row of the pending table, position, write slot, page table     (decode and prefill)
tokens    int32 [T, 3]       id, first value, second value as float bits (prefill: rows one after the other)
packed    int32 [W]          where positions lie on one axis, see `PackedLayout` (prefill of packed prompts)
choices   int32 [B, K]       sampling params, see `kernels.columns`
masks     int32 [B, W]       allowed ids as bits
results   int32 [B, 7]       what was sampled, see `kernels.columns`
scored    int32 [B, S]       ids whose probabilities are needed, then -1     (both only where a row asks for scores)
scores    float32 [B, S]     these probabilities
```
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from photonlite.device.base import Array, Device, Event
from photonlite.kernels.columns import PARAM_COLUMNS, QUERY_TILE, RESULT_COLUMNS, TILE_COLUMNS
from photonlite.request import MAX_SCORED
from photonlite.sequence import MAX_INFLIGHT

if TYPE_CHECKING:  # slots need no torch
    from torch import Tensor

PENDING_ROW, POSITION, WRITE_SLOT, PAGES = 0, 1, 2, 3  # columns of `rows`; the page table begins at the last
NO_VALUE = np.float32(-1.0).view(np.int32)
"""Stands in `tokens` where a token has no first or no second value: values lie in [0, 1]."""

SCRATCH_PAGE = 0  # unused rows of a batch write here
EMBEDDED = -1  # stands for a word where the input is not one: part of an image, or a token with a value
_PLACE_COLUMNS = 3

AnyArray = TypeVar("AnyArray", Array, "Tensor")


@dataclass(frozen=True, slots=True)
class PromptRow:
    index: int  # of the launch
    start: int  # first position that gets keys and values; the earlier ones are cached
    count: int  # of such positions
    first: int  # its first token among the uploaded ones
    leading: int  # positions before its tokens: BOS, and an image that is not cached; 0 for a resumed row
    block: int  # leading positions that see each other in both directions
    job: int | None  # number of the image's encode job; None without an image, or where it is cached

    @property
    def tokens(self) -> int:
        """Number of its tokens, which follow BOS and image from `start` on."""
        return self.count - self.leading

    @property
    def tiles(self) -> int:
        return -(-self.count // QUERY_TILE)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Parts of an int32 array that places at most `rows` prompts on one axis; its used part is contiguous.

    ```
    ends     [2, R]    where each row's last position stands on the axis;  its number of positions, 0: unused
    tiles    [N, 5]    the axis cut for attention, see `kernels.columns`
    places   [T, 3]    of each position: position in its row, write slot, id of its word or EMBEDDED
    ```
    """

    rows: int
    positions: int

    @property
    def tiles(self) -> int:
        """Tiles of a launch at most: full ones, and one of each row that is not."""
        return self.positions // QUERY_TILE + self.rows

    @property
    def words(self) -> int:
        return self.used(self.positions)

    def used(self, positions: int) -> int:
        return 2 * self.rows + TILE_COLUMNS * self.tiles + _PLACE_COLUMNS * positions

    def ends_of(self, packed: AnyArray) -> AnyArray:
        return packed[: 2 * self.rows].reshape(2, self.rows)

    def tiles_of(self, packed: AnyArray) -> AnyArray:
        return packed[2 * self.rows : self.used(0)].reshape(-1, TILE_COLUMNS)

    def places_of(self, packed: AnyArray, positions: int) -> AnyArray:
        return packed[self.used(0) : self.used(positions)].reshape(-1, _PLACE_COLUMNS)


@dataclass(frozen=True, slots=True)
class SlotShape:
    max_rows: int  # of a launch
    max_tokens: int  # positions of a prefill launch, all rows together
    page_size: int
    max_pages: int  # of the longest sequence
    mask_words: int  # 32-bit words of a mask
    pending_rows: int  # of the pending table; unused rows write to the last

    @property
    def packed(self) -> PackedLayout:
        return PackedLayout(self.max_rows, self.max_tokens)


class Slot:
    def __init__(self, index: int, device: Device, shape: SlotShape) -> None:
        if not 0 <= index < MAX_INFLIGHT:
            raise ValueError(f"a pipeline has slots 0 to {MAX_INFLIGHT - 1}, not {index}")

        def events(count: int) -> list[Event]:
            return [device.event() for _ in range(count)]

        self.index = index
        self.shape = shape
        self.rows: Array = device.host_array((shape.max_rows, PAGES + shape.max_pages), np.int32)
        self.tokens: Array = device.host_array((shape.max_tokens, 3), np.int32)
        self.packed: Array = device.host_array((shape.packed.words,), np.int32)
        self.choices: Array = device.host_array((shape.max_rows, PARAM_COLUMNS), np.int32)
        self.masks: Array = device.host_array((shape.max_rows, shape.mask_words), np.int32)
        self.results: Array = device.host_array((shape.max_rows, RESULT_COLUMNS), np.int32)
        self.scored: Array = device.host_array((shape.max_rows, MAX_SCORED), np.int32)
        self.scores: Array = device.host_array((shape.max_rows, MAX_SCORED), np.float32)
        self.upload_begun, self.uploaded, self.choices_uploaded = events(3)
        self.forward_begun, self.forward_ended, self.finalize_begun, self.finalize_ended = events(4)
        self.copy_begun, self.copied = events(2)

"""The slots of the pipeline: which step is in each, the host arrays that its copies use, and its events. No torch.

```
              tick n                        tick n+1
 host    ┌ launch B ─ commit A ─ finalize B ┬ launch A ─ commit B ─ finalize A ┬
 compute │ ... A ┐┌──── forward B ───────┐┌ sample B ┐┌──── forward A ──────┐┌ sample A ┐
 slot 0  │ A: pending  committing  free     │ C: launched              pending
 slot 1  │ B: launched            pending   │ B: pending  committing  free

 free ── launch ──> launched ── finalize ──> pending ── begin_commit ──> committing ── end_commit ──> free
```

Steps are committed in the order in which they were launched, whatever their kind. With `depth=1` the same code runs one
step at a time: nothing is launched before the step in flight has been committed.

Host arrays are rewritten only while the slot is free. By then every copy that read them has finished: the commit waited
for the copy of the results, which is queued behind them.

```
adapters  int32 [B]          slots of the rows' adapters, 0 for none                  (where a row has one: `adapted`)
rows      int32 [B, 4 + P]   pending row, position, write slot, rotary position, page table  (decode and prefill)
tokens    int32 [T, 3]       id, first value, second value as float bits (prefill: rows one after the other)
packed    int32 [W]          where positions lie on one axis, see `SlotShape` (prefill of packed prompts)
choices   int32 [B, K]       sampling params, see `kernels.columns`
masks     int32 [B, W]       allowed ids as bits
results   int32 [B, 7]       what was sampled, see `kernels.columns`
scored    int32 [B, S]       ids whose probabilities are needed, then -1     (both only where a row asks for scores)
scores    float32 [B, S]     these probabilities
seen      int32 [B, W]       ids of prompt and answer so far as bits         (only where a row has a penalty)
```
"""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from photonlite.batch import ScheduledBatch, State, Step
from photonlite.device.base import Array, Device, Event
from photonlite.kernels.columns import PARAM_COLUMNS, QUERY_TILE, RESULT_COLUMNS, TILE_COLUMNS
from photonlite.request import MAX_SCORED
from photonlite.sequence import MAX_INFLIGHT

if TYPE_CHECKING:
    from torch import Tensor

PENDING_ROW, POSITION, WRITE_SLOT, TURN, PAGES = 0, 1, 2, 3, 4  # columns of `rows`; the page table begins at the last
NO_VALUE = np.float32(-1.0).view(np.int32)
"""Stands in `tokens` where a token has no first or no second value: values lie in [0, 1]."""

SCRATCH_PAGE = 0  # unused rows of a batch write here
EMBEDDED = -1  # stands for a word where the input is not one: part of an image, or a token with a value
_PLACE_COLUMNS = 4

ENCODER_SLOTS = 2
"""Encode steps in flight beside the others: one runs, and one is queued behind it, so that the stream has no gap."""

AnyArray = TypeVar("AnyArray", Array, "Tensor")


class Pipeline:
    """The slots and the steps in them; a depth of 1 is blocking, 2 is pipelined. `numbers` are those of the steps."""

    def __init__(self, depth: int, numbers: Iterator[int] | None = None) -> None:
        if depth not in (1, 2):
            raise ValueError(f"a pipeline has a depth of 1 or 2, not {depth}")
        self.depth = depth
        self._free = deque(range(depth))
        self._in_flight: deque[Step] = deque()
        self._numbers = itertools.count() if numbers is None else numbers

    @property
    def in_flight(self) -> tuple[Step, ...]:
        """Steps launched and not yet committed, oldest first."""
        return tuple(self._in_flight)

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def oldest(self) -> Step | None:
        return self._in_flight[0] if self._in_flight else None

    def launch(self, plan: ScheduledBatch) -> Step:
        if not self._free:
            raise AssertionError("a launch needs a free slot, and all are taken")
        if self._in_flight and self._in_flight[-1].state == "launched":
            raise AssertionError(f"step {self._in_flight[-1].number} must be finalized before the next launch")
        step = Step(next(self._numbers), plan, self._free.popleft())
        self._in_flight.append(step)
        return step

    def abandon(self, step: Step) -> None:
        """Undo the newest launch, which raised."""
        if not self._in_flight or self._in_flight[-1] is not step or step.state not in ("launched", "pending"):
            raise AssertionError(f"step {step.number} is {step.state} and not the newest: it cannot be taken back")
        self._in_flight.pop()
        self._free.appendleft(step.slot)
        step.state = "free"

    def finalize(self, step: Step) -> None:
        """Mark heads and sampling as queued: every earlier step is committed, or no mask depends on it."""
        _advance(step, "launched", "pending", "only a launched step is finalized")

    def begin_commit(self, step: Step) -> None:
        if self.oldest is not step:
            raise AssertionError(f"step {step.number} is not the oldest in flight: commits keep the order of launches")
        _advance(step, "pending", "committing", "only a finalized step is committed")

    def end_commit(self, step: Step) -> None:
        _advance(step, "committing", "free", "its commit has not begun")
        self._in_flight.popleft()
        self._free.append(step.slot)


@dataclass(frozen=True, slots=True)
class SlotShape:
    """Sizes of a slot's arrays, and the parts of `packed`, whose used part is contiguous.

    ```
    ends     [2, R]    where each row's last position stands on the axis;  its number of positions, 0: unused
    tiles    [N, 5]    the axis cut for attention, see `kernels.columns`
    places   [T, 4]    of each position: position in its row, write slot, id of its word or EMBEDDED, adapter's slot
    turns    [T, A]    its rotary position on each axis, where a model has several
    ```
    """

    max_rows: int  # of a launch
    max_tokens: int  # positions of a prefill launch, all rows together
    page_size: int
    max_pages: int  # of the longest sequence
    mask_words: int  # 32-bit words of a mask
    pending_rows: int  # of the pending table; unused rows write to the last
    axes: int = 0  # of rotary positions; 0 where these are the positions
    mixed: bool = False  # a launch of prompts may carry many rows of one position

    def packed_words(self, positions: int) -> int:
        """Words of `packed` that so many positions use; tiles are full ones, and one of each row that is not."""
        tiles = self.max_tokens // QUERY_TILE + self.max_rows
        return 2 * self.max_rows + TILE_COLUMNS * tiles + (_PLACE_COLUMNS + self.axes) * positions

    def ends_of(self, packed: AnyArray) -> AnyArray:
        return packed[: 2 * self.max_rows].reshape(2, self.max_rows)

    def tiles_of(self, packed: AnyArray) -> AnyArray:
        return packed[2 * self.max_rows : self.packed_words(0)].reshape(-1, TILE_COLUMNS)

    def places_of(self, packed: AnyArray, positions: int) -> AnyArray:
        start = self.packed_words(0)
        return packed[start : start + _PLACE_COLUMNS * positions].reshape(-1, _PLACE_COLUMNS)

    def turns_of(self, packed: AnyArray, positions: int) -> AnyArray:
        start = self.packed_words(0) + _PLACE_COLUMNS * positions
        return packed[start : self.packed_words(positions)].reshape(-1, max(1, self.axes))


class EncoderSlot:
    """What an encode step uses: events, and buffers on the device by `index`; `beside` on the encoder's stream."""

    def __init__(self, index: int, device: Device, *, beside: bool = False) -> None:
        self.index = index
        self.beside = beside
        self.in_part = False  # its graphs are those of a part of the card: the encoder's, or decoding's
        self.upload_begun, self.uploaded, self.forward_begun, self.forward_ended = _events(device, 4)


class Slot(EncoderSlot):
    """What any step uses; `beside`, images and prompts on the encoder's stream."""

    def __init__(self, index: int, device: Device, shape: SlotShape, *, beside: bool = False) -> None:
        if not 0 <= index < MAX_INFLIGHT:
            raise ValueError(f"a pipeline has slots 0 to {MAX_INFLIGHT - 1}, not {index}")
        super().__init__(index, device, beside=beside)
        self.shape = shape
        self.adapters: Array = device.host_array((shape.max_rows,), np.int32)
        self.adapted = False  # some row of the launch has an adapter
        self.rows: Array = device.host_array((shape.max_rows, PAGES + shape.max_pages), np.int32)
        self.tokens: Array = device.host_array((shape.max_tokens, 3), np.int32)
        self.packed: Array = device.host_array((shape.packed_words(shape.max_tokens),), np.int32)
        self.choices: Array = device.host_array((shape.max_rows, PARAM_COLUMNS), np.int32)
        self.masks: Array = device.host_array((shape.max_rows, shape.mask_words), np.int32)
        self.results: Array = device.host_array((shape.max_rows, RESULT_COLUMNS), np.int32)
        self.scored: Array = device.host_array((shape.max_rows, MAX_SCORED), np.int32)
        self.scores: Array = device.host_array((shape.max_rows, MAX_SCORED), np.float32)
        self.seen: Array = device.host_array((shape.max_rows, shape.mask_words), np.int32)
        self.choices_uploaded, self.finalize_begun, self.finalize_ended = _events(device, 3)
        self.copy_begun, self.copied = _events(device, 2)


def _events(device: Device, count: int) -> list[Event]:
    return [device.event() for _ in range(count)]


def _advance(step: Step, expected: State, state: State, objection: str) -> None:
    if step.state != expected:
        raise AssertionError(f"step {step.number} is {step.state}: {objection}")
    step.state = state

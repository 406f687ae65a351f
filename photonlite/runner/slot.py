"""One slot of the pipeline: host arrays that copies read and write, and the events that tie streams together.

Host arrays are rewritten only while the slot is free: then every copy that read them has finished, because the copy of
the results, for which the commit waited, was queued behind them.

```
rows      int32 [B, 3 + P]   row of the pending table, position, write slot, page table     (decode and prefill)
tokens    int32 [T, 3]       id, first value, second value as float bits (prefill: rows one after the other)
packed    int32 [W]          where positions lie on one axis, see `runner.layout` (prefill of packed prompts)
choices   int32 [B, K]       how to choose, see `kernels.columns`
masks     int32 [B, W]       allowed ids as bits
results   int32 [B, 7]       what was chosen, see `kernels.columns`
scored    int32 [B, S]       ids whose probabilities are wanted, then -1     (both only where a row wants some)
scores    float32 [B, S]     these probabilities
```
"""

from dataclasses import dataclass

import numpy as np

from photonlite.device.base import Array, Device, Event
from photonlite.kernels.columns import PARAM_COLUMNS, RESULT_COLUMNS
from photonlite.request import MAX_SCORED
from photonlite.runner.layout import PackedLayout
from photonlite.sequence import MAX_INFLIGHT

PENDING_ROW, POSITION, WRITE_SLOT, PAGES = 0, 1, 2, 3
"""Columns of `rows`; the page table begins at the last."""

NO_VALUE = np.float32(-1.0).view(np.int32)
"""Stands in `tokens` where a token has no first or no second value: values lie in [0, 1]."""

SCRATCH_PAGE = 0
"""Unused rows of a batch write here."""


@dataclass(frozen=True, slots=True)
class SlotShape:
    """How large a slot's arrays are.

    Attributes:
        max_rows: Rows of a launch.
        max_tokens: Positions of a prefill launch, all rows together, and so its tokens at most.
        page_size: Positions of a page.
        max_pages: Pages of the longest sequence.
        mask_words: 32-bit words of a mask.
        pending_rows: Rows of the pending table; the last of them takes what unused rows write.
    """

    max_rows: int
    max_tokens: int
    page_size: int
    max_pages: int
    mask_words: int
    pending_rows: int

    @property
    def packed(self) -> PackedLayout:
        """How packed prompts are laid out."""
        return PackedLayout(self.max_rows, self.max_tokens)


class Slot:
    """Buffers and events of one step in flight.

    Args:
        index: 0 or 1.
        device: Where copies run.
        shape: How large the arrays are.
    """

    def __init__(self, index: int, device: Device, shape: SlotShape) -> None:
        if not 0 <= index < MAX_INFLIGHT:
            raise ValueError(f"a pipeline has slots 0 to {MAX_INFLIGHT - 1}, not {index}")
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
        self.upload_begun: Event = device.event()
        self.uploaded: Event = device.event()
        self.forward_begun: Event = device.event()
        self.forward_ended: Event = device.event()
        self.choices_uploaded: Event = device.event()
        self.finalize_begun: Event = device.event()
        self.finalize_ended: Event = device.event()
        self.copy_begun: Event = device.event()
        self.copied: Event = device.event()

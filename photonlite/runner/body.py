"""What a runner asks of the machine: the work inside a step, without a word on streams, events or slots' lives.

`runner.torch_body` does it with a model; the simulator in the tests does it with symbols.
"""

from collections.abc import Sequence
from typing import Protocol

from photonlite.batch import CropGroup, EncodeJob, PageCopy, ScheduledBatch
from photonlite.runner.choices import Variant
from photonlite.runner.slot import Slot, SlotShape


class ModelRunner(Protocol):
    """Work on one device. Each method is called on the stream that its name suggests, in the order of the streams.

    Host arrays of a slot are read when the work runs, not when it is queued: that is what a copy engine does.
    """

    @property
    def shape(self) -> SlotShape:
        """How large slots must be."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids that masks speak of."""
        ...

    @property
    def coordinates(self) -> Sequence[float]:
        """The coordinate of each bin."""
        ...

    @property
    def sizes(self) -> Sequence[float]:
        """The width or height of each bin."""
        ...

    def padded(self, rows: int) -> tuple[int, bool]:
        """Give the rows that a decode step of `rows` rows runs with, and whether a graph runs it."""
        ...

    def upload_rows(self, slot: Slot, count: int) -> None:
        """Copy the first `count` of `slot.rows` to the device."""
        ...

    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None:
        """Copy the first `count` of `slot.tokens` to the device, and what else running the plan's prompts takes."""
        ...

    def upload_crops(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Copy the groups' crops to the device, or the images that it makes them of."""
        ...

    def encode(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Encode the uploaded crops in one batch; keep each job's features until `forget`."""
        ...

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts: rows one after the other in the uploaded tokens; leave each row's last raw hidden state."""
        ...

    def decode(self, slot: Slot, count: int) -> None:
        """Run one position of `count` rows, embedded from the pending table; leave their raw hidden states."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages, keys and values of all layers."""
        ...

    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None:
        """Copy the first `count` of `slot.choices` to the device; of masks and scored ids where it takes them."""
        ...

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        """Choose a token for each row with the heads of the variant; put it into the pending table and the results."""
        ...

    def download(self, slot: Slot, count: int, variant: Variant) -> None:
        """Copy the first `count` results to `slot.results`, and to `slot.scores` where there are some."""
        ...

    def forget(self, job: EncodeJob) -> None:
        """Let go of a job's features."""
        ...

    def free_memory(self) -> None:
        """Give memory back that is kept for later work only."""
        ...

    def close(self) -> None:
        """Let go of the device's memory."""
        ...

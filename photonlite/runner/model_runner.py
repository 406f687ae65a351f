"""What a step executor needs of the machine: the work inside a step, without streams, events or the life of slots.

`TorchModelRunner` does it with a model; the simulator in the tests does it with symbols.
"""

from collections.abc import Sequence
from typing import Protocol

from photonlite.batch import CropGroup, EncodeJob, PageCopy, ScheduledBatch
from photonlite.runner.sampling_params import Variant
from photonlite.runner.slot import Slot, SlotShape


class ModelRunner(Protocol):
    """Work on one device. Each method is called on the stream that its name suggests, in the order of the streams.

    Host arrays of a slot are read when the work runs, not when it is queued, as copy engines do.
    """

    @property
    def shape(self) -> SlotShape: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def coordinates(self) -> Sequence[float]:
        """The coordinate of each bin."""
        ...

    @property
    def sizes(self) -> Sequence[float]:
        """The width or height of each bin."""
        ...

    def padded(self, rows: int) -> tuple[int, bool]:
        """Return the rows that a decode step of `rows` rows runs with, and whether a graph runs it."""
        ...

    def upload_rows(self, slot: Slot, count: int) -> None:
        """Copy the first `count` of `slot.rows` to the device."""
        ...

    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None:
        """Copy the first `count` of `slot.tokens` and other inputs of the plan's prompts to the device."""
        ...

    def upload_crops(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Copy the groups' crops to the device, or the images that it cuts into crops."""
        ...

    def encode(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Encode the uploaded crops in one batch; keep each job's features until `forget`."""
        ...

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts, whose uploaded tokens lie row by row; leave each row's last raw hidden state."""
        ...

    def decode(self, slot: Slot, count: int) -> None:
        """Run one position of `count` rows, embedded from the pending table; leave their raw hidden states."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages, keys and values of all layers."""
        ...

    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None:
        """Copy the first `count` of `slot.choices` to the device, and of masks and scored ids if needed."""
        ...

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        """Sample a token for each row with the heads of the variant; write it to pending table and results."""
        ...

    def download(self, slot: Slot, count: int, variant: Variant) -> None:
        """Copy the first `count` results to `slot.results`, and scores to `slot.scores`."""
        ...

    def forget(self, job: EncodeJob) -> None:
        """Drop a job's features."""
        ...

    def free_memory(self) -> None:
        """Return memory that is cached for later work only."""
        ...

    def close(self) -> None: ...

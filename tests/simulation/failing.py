"""A device whose calls fail: when they fail, and the model runner that raises."""

from collections import Counter
from collections.abc import Callable, Sequence

from photonlite.batch import CropGroup, ScheduledBatch, Transfer
from photonlite.runner.sampling_params import Variant
from photonlite.runner.slots import EncoderSlot, Slot, SlotShape
from tests.simulation.body import SymbolicBody


class InjectedFailure(Exception):  # noqa: N818 - what a broken device raises
    """A call fails because the seed says so."""


class InjectedShortage(MemoryError):  # noqa: N818 - the same
    """The same for a call that runs out of memory."""


class Failures:
    """Decides which calls fail: never three steps in a row, unless the device is to die.

    Two may: a second step fails while the first failure is still on its way, or right behind it.

    Args:
        planned: For each kind of call, numbers of calls that fail.
        deadly: The launch from which on every launch fails; None for never.

    Attributes:
        dying: Whether the device has begun to fail for good.
        wounds: Failures since a step has come back well.
    """

    def __init__(self, planned: dict[str, frozenset[int]], deadly: int | None) -> None:
        self.dying = False
        self.wounds = 0
        self._planned = planned
        self._deadly = deadly
        self._calls: Counter[str] = Counter()

    def due(self, kind: str) -> bool:
        """Count a call; returns whether it fails."""
        number = self._calls[kind]
        self._calls[kind] = number + 1
        if kind == "launch" and self._deadly is not None and number >= self._deadly:
            self.dying = True
        elif self.wounds >= 2 or number not in self._planned.get(kind, ()):
            return False
        self.wounds += 1
        return True


class FailingBody(SymbolicBody):
    """A model runner whose calls fail when they run, before or after they have done something.

    Args:
        shape: See `SymbolicBody`, as for the next four.
        prefix_length: See there.
        pages: See there.
        sizes: See there.
        spoils: See there.
        fail: Raises where a call of a kind fails, given the slot; None for the newest launch's.
        late: Tells whether it fails after its work.
    """

    def __init__(
        self,
        shape: SlotShape,
        prefix_length: int,
        pages: int,
        sizes: Sequence[int],
        spoils: Callable[[Slot, int], bool] | None,
        fail: Callable[[str, EncoderSlot | None], None],
        late: Callable[[], bool],
    ) -> None:
        super().__init__(shape, prefix_length, pages, sizes, spoils)
        self.copy_fails: Callable[[], bool] = lambda: False  # tells whether a copy of pages fails
        self._fail = fail
        self._late = late

    def padded(self, rows: int, *, adapted: bool = False) -> tuple[int, bool]:
        self._fail("padded", None)
        return super().padded(rows, adapted=adapted)

    def upload_rows(self, slot: Slot, count: int) -> None:
        self._either("upload", slot, super().upload_rows, slot, count)

    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None:
        self._either("upload", slot, super().upload_prompts, slot, plan, count)

    def upload_crops(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None:
        self._either("upload", slot, super().upload_crops, slot, groups)

    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None:
        self._either("upload", slot, super().upload_choices, slot, count, variant)

    def encode(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None:
        self._either("encode", slot, super().encode, slot, groups)

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        self._either("prefill", slot, super().prefill, slot, plan)

    def decode(self, slot: Slot, count: int) -> None:
        self._either("decode", slot, super().decode, slot, count)

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        self._either("finalize", slot, super().finalize, slot, count, variant, sampled=sampled)

    def download(self, slot: Slot, count: int, variant: Variant) -> None:
        self._either("download", slot, super().download, slot, count, variant)

    def swap(self, transfer: Transfer) -> None:
        late = self._late()
        if late:
            super().swap(transfer)
        if self.copy_fails():
            raise InjectedFailure(f"copy {transfer.number} fails")
        if not late:
            super().swap(transfer)

    def _either(
        self, kind: str, slot: EncoderSlot, work: Callable[..., None], *arguments: object, **options: object
    ) -> None:
        if self._late():
            work(*arguments, **options)
            self._fail(kind, slot)
        else:
            self._fail(kind, slot)
            work(*arguments, **options)

"""The simulator's model runner: pages hold symbols, copies happen when they run, no host state is trusted.

What a step reads, it reads as a device would: page tables and tokens from the slot's uploaded copies, inputs from the
pending table, earlier positions through the page table.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from photonlite.batch import BatchItem, CropGroup, EncodeJob, PageCopy, ScheduledBatch, Transfer
from photonlite.image_inputs import StoredImage, UncutImage
from photonlite.kernels.columns import RESULT_COLUMNS
from photonlite.runner.sampling_params import WITH_COORDINATES, WITH_IDS, WITH_SCORES, WITH_SIZES, Variant
from photonlite.runner.slots import PAGES, PENDING_ROW, POSITION, WRITE_SLOT, EncoderSlot, Slot, SlotShape
from tests.simulation.model import (
    BOS_CELL,
    COORDINATE_BITS,
    COORDINATES,
    NAN,
    NO_NUMBER,
    SIZE_BITS,
    SIZES,
    VOCAB_SIZE,
    Choice,
    Input,
    adapted,
    block_cells,
    choose_coordinate,
    choose_id,
    choose_size,
    embed_image,
    goes_on,
    image_cell,
    image_input,
    next_cell,
    nucleus,
    probability_of,
    unseen,
)

_CHOICE = struct.Struct("=5i5fif")
_RESULTS = [struct.Struct("=" + count * "4i3f") for count in range(65)]
_IDS: dict[tuple[int, ...], tuple[int, ...]] = {}
_STALE = 9_999_991
"""Content of uninitialised memory."""

Rows = list[list[int]]
Crops = list[tuple[int, ...]]
"""For each group, its crops as numbers."""


class Violation(BaseException):
    """An invariant is broken. Not an `Exception`, so that no error handler swallows it."""


class Twin:
    """A slot's buffers on the device."""

    __slots__ = (
        "adapters",
        "choices",
        "crops",
        "hidden",
        "masks",
        "prefill",
        "results",
        "rows",
        "scored",
        "scores",
        "seen",
        "tokens",
    )

    def __init__(self) -> None:
        self.adapters: list[int] = []
        self.rows: Rows = []
        self.tokens: list[Input] = []
        self.crops: Crops = []
        self.choices: list[tuple[Any, ...]] = []
        self.masks: Rows = []
        self.hidden: list[int] = []
        self.results: list[float] = []
        self.scored: Rows = []
        self.scores: list[list[float]] = []
        self.seen: Rows = []
        self.prefill: ScheduledBatch | None = None


class SymbolicBody:
    """Runs steps with symbols.

    Args:
        shape: Of the slots.
        prefix_length: Positions of BOS and image.
        pages: Of the KV cache.
        sizes: Batch sizes that decode steps are padded to; larger ones and, without any, all run as they are.
        spoils: Tells whether the numbers of a row that needs them turn into NaNs, given the slot and the row of its
            batch; None for never.

    Attributes:
        cells: The KV cache.
        features: Crops that were encoded for each job, until forgotten.
        embeddings: What they made when they were all there, until forgotten.
        kept: Embeddings of images that were encoded, by their keys, as a store has them.
        kept_pages: Cells up to their ends that were computed for prompts, by the keys of these prefixes.
        pages: Stored cells up to an image's end, where a job has them.
        uncut: Crops that the device has made of whole images, for launches to come.
        bank: The adapter in each slot, by number.
    """

    vocab_size = VOCAB_SIZE
    coordinates = COORDINATES
    sizes = SIZES

    def __init__(
        self,
        shape: SlotShape,
        prefix_length: int,
        pages: int,
        sizes: Sequence[int],
        spoils: Callable[[Slot, int], bool] | None = None,
    ) -> None:
        self.shape = shape
        self.cells = [_STALE] * (pages * shape.page_size)
        self.features: dict[int, list[int]] = {}
        self.embeddings: dict[int, int] = {}
        self.kept: dict[str, int] = {}
        self.kept_pages: dict[str, list[int]] = {}
        self.uncut: dict[int, tuple[int, ...]] = {}
        self.pages: dict[int, list[int]] = {}
        self.bank: dict[int, int] = {}
        self.host: dict[int, list[int]] = {}  # swapped pages, by place
        self.host_rows: dict[int, Input] = {}  # what the pending table had of their sequences
        self.closed = False
        self._prefix_length = prefix_length
        self._padded = {
            rows: min((size for size in sizes if rows <= size <= shape.max_rows), default=0)
            for rows in range(1, shape.max_rows + 1)
        }
        self._pending: list[Input] = [(0, NO_NUMBER, NO_NUMBER)] * shape.pending_rows
        self._spoils = spoils
        self._twins = {beside: (Twin(), Twin()) for beside in (False, True)}

    part_sizes: Sequence[int] = ()

    def padded(self, rows: int, *, adapted: bool = False) -> tuple[int, bool]:
        size = self._padded[rows]
        return (size, True) if size else (rows, False)

    def upload_rows(self, slot: Slot, count: int) -> None:
        twin = self._twin(slot)
        twin.rows = slot.rows[:count].tolist()
        twin.adapters = slot.adapters[:count].tolist() if slot.adapted else [0] * count
        twin.prefill = None

    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None:
        self._twin(slot).tokens = list(map(tuple, slot.tokens[:count].tolist()))

    def upload_crops(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None:
        self._twin(slot).crops = [_uploaded(group) for group in groups]

    def encode(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None:
        for group, crops in zip(groups, self._twin(slot).crops, strict=True):
            job = group.job
            if job.failed:
                self.forget(job)
                continue
            if isinstance(job.crops, StoredImage):
                self.embeddings[job.number], *self.pages[job.number] = crops
                continue
            if isinstance(job.crops, UncutImage):
                crops = self._cut(group, crops)
            features = self.features.setdefault(job.number, [])
            adapter = self._adapter(group.adapter_slot)
            features += [adapted(crop, adapter) for crop in crops]
            if len(features) == job.total:
                self.embeddings[job.number] = self.kept[job.key] = embed_image(features)
                del self.features[job.number]

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        twin, cells, size = self._twin(slot), self.cells, self.shape.page_size
        tokens = iter(twin.tokens)
        twin.hidden = []
        twin.prefill = plan
        rows = zip(plan.rows, twin.rows, twin.adapters, strict=False)  # behind these, unused ones may be sampled
        for row, table, number in rows:
            adapter = self._adapter(number)
            start, end, cell = row.start, row.start + row.count, NAN
            if row.restored:
                self._restore(row, table)
            if start > 0:
                cell = cells[_place(table, start - 1, size)]
            elif row.sequence.prefix_len == 0:
                cell = BOS_CELL
            else:
                leading = [adapted(cell, adapter) for cell in self._leading(row)]
                if row.sequence.prompt_block:
                    count = row.sequence.prompt_block - len(leading)
                    leading = block_cells(leading, [next(tokens) for _ in range(count)], adapter)
                for position, cell in enumerate(leading):
                    cells[_place(table, position, size)] = cell
                start, cell = len(leading), leading[-1]
            inside = self._inside(row)
            for position in range(start, end):
                first = row.pending and position == row.start
                word = self._pending[table[PENDING_ROW]] if first else next(tokens)
                word = inside.get(position, word)
                cell = next_cell(cell, word, adapter) if word[0] != NAN or position not in inside else NAN
                cells[_place(table, position, size)] = cell
            if row.sequence.note_filled(row.start, row.start + row.count):
                self._keep(row, table)
            if table[POSITION] != end - 1:
                raise Violation(f"a prompt's last position is {end - 1}, but {table[POSITION]} was uploaded")
            twin.hidden.append(_look(cells, table, cell, end - 1, size))
        for table, _ in zip(twin.rows, plan.rows, strict=True) if plan.beside else ():
            self._pending[table[PENDING_ROW]] = next(tokens)
        if next(tokens, None) is not None:
            raise Violation("more tokens were uploaded than the rows of a prefill launch have")
        twin.hidden += [_STALE] * (len(twin.rows) - len(plan.rows))

    def decode(self, slot: Slot, count: int) -> None:
        twin, cells, size, pending = self._twin(slot), self.cells, self.shape.page_size, self._pending
        scratch_row = len(pending) - 1
        hidden = twin.hidden = []
        for row, number in zip(twin.rows, twin.adapters, strict=True):
            place, position, target = row[PENDING_ROW], row[POSITION], row[WRITE_SLOT]
            if place == scratch_row:
                if target >= size:
                    raise Violation(f"an unused row writes to cell {target}, beyond the scratch page")
                cells[target] = _STALE
                hidden.append(_STALE)
                continue
            last = position - 1
            page = row[PAGES + last // size]
            if page == 0 or target < size or target != row[PAGES + position // size] * size + position % size:
                raise Violation(f"position {position} is written to cell {target}, through the page table {row}")
            cell = cells[page * size + last % size]
            cell = next_cell(cell, pending[place], self._adapter(number))
            cells[target] = cell
            hidden.append(_look(cells, row, cell, position, size))
        if len(hidden) != count:
            raise Violation(f"{count} rows are decoded, but {len(hidden)} were uploaded")

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        cells, size = self.cells, self.shape.page_size
        for copy in copies:
            source, target = copy.source * size, copy.target * size
            if source == 0 or target == 0:
                raise Violation(f"the scratch page takes part in {copy}")
            cells[target : target + size] = cells[source : source + size]

    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None:
        twin = self._twin(slot)
        twin.choices = list(_CHOICE.iter_unpack(slot.choices[:count].tobytes()))
        if variant in WITH_IDS:
            twin.masks = slot.masks[:count].tolist()
        if variant in WITH_SCORES:
            twin.scored = slot.scored[:count].tolist()
        twin.seen = slot.seen[:count].tolist() if variant == "penalized" else []

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        twin, pending, spoils = self._twin(slot), self._pending, self._spoils
        texts, coordinates, sizes = variant in WITH_IDS, variant in WITH_COORDINATES, variant in WITH_SIZES
        results: list[float] = []
        for index in range(count):
            row, hidden, params = twin.rows[index], twin.hidden[index], twin.choices[index]
            forced = params[0]
            if spoils is not None and (forced < 0 or forced in params[1:3]) and spoils(slot, index):
                self._spoil(twin, index)
                hidden = NAN
            draws = params[7:] if sampled and params[5] > 0 else (0.0, 0.0, 0.0)
            if forced >= 0 or not texts:
                choice = Choice(forced)
            else:
                top_p = params[6] if sampled and params[5] > 0 else 1.0
                seen = _ids_of(twin.seen[index]) if twin.seen and params[11] != 1 else ()
                choice = _free(hidden, params, twin.masks[index], draws[0], top_p, coordinates, seen)
            token = choice.id
            if token == params[1] and coordinates:
                place, mass = choose_coordinate(hidden, draws[1])
                choice = choice._replace(bin0=place, mass0=mass, finite=hidden != NAN)
                pending[row[PENDING_ROW]] = (token, COORDINATE_BITS[place], NO_NUMBER)
            elif token == params[2] and sizes:
                width, height, mass0, mass1 = choose_size(hidden, draws[1:])
                choice = Choice(token, width, height, hidden != NAN, choice.probability, mass0, mass1)
                pending[row[PENDING_ROW]] = (token, SIZE_BITS[width], SIZE_BITS[height])
            else:
                pending[row[PENDING_ROW]] = (token, NO_NUMBER, NO_NUMBER)
            results += choice
        twin.results = results
        if variant in WITH_SCORES:
            pairs = zip(twin.hidden, twin.scored, strict=True)
            twin.scores = [[probability_of(hidden, one) for one in ids] for hidden, ids in pairs]

    def download(self, slot: Slot, count: int, variant: Variant) -> None:
        twin = self._twin(slot)
        _RESULTS[count].pack_into(slot.results, 0, *twin.results[: count * RESULT_COLUMNS])
        if variant in WITH_SCORES:
            slot.scores[:count] = twin.scores[:count]

    def swap(self, transfer: Transfer) -> None:
        cells, size, host = self.cells, self.shape.page_size, self.host
        for page, place in zip(transfer.pages, transfer.places, strict=True):
            here = slice(page * size, (page + 1) * size)
            if page == 0 or place == 0:
                raise Violation(f"page {page} and place {place} take part in a swap")
            if transfer.direction == "out":
                host[place] = cells[here]
            else:
                cells[here] = host.pop(place)
        if transfer.direction == "out":
            self.host_rows[transfer.first] = self._pending[transfer.row]
        else:
            self._pending[transfer.row] = self.host_rows.pop(transfer.first)

    def forget(self, job: EncodeJob) -> None:
        self.uncut.pop(job.number, None)
        self.features.pop(job.number, None)
        self.embeddings.pop(job.number, None)
        self.pages.pop(job.number, None)

    def free_memory(self) -> None:
        """Nothing is kept but features and embeddings, which `forget` frees."""

    def close(self) -> None:
        self.closed = True

    def _twin(self, slot: EncoderSlot) -> Twin:
        return self._twins[slot.beside][slot.index]

    def _adapter(self, slot: int) -> int:
        """Return what is in a slot now; 0 for no adapter."""
        return self.bank.get(slot, _STALE) if slot else 0

    def _cut(self, group: CropGroup, uploaded: tuple[int, ...]) -> tuple[int, ...]:
        """Make a group's crops of an image that its first launch has copied whole; later ones read what is kept."""
        number, end = group.job.number, group.first + group.count
        if group.first == 0:
            self.uncut[number] = uploaded
        crops = self.uncut.get(number, (_STALE,) * group.job.total)[group.first : end]
        if end == group.job.total:
            self.uncut.pop(number, None)
        return crops

    def _restore(self, row: BatchItem, table: list[int]) -> None:
        """Write stored cells up to the ends of a row's images, but for shared pages; NaNs where they are missing."""
        size = self.shape.page_size
        for job, place, first in row.restored:
            stored = self.pages.pop(job.number, None) or [NAN] * (place.end - place.start)
            for position in range(first * size, place.end):
                self.cells[_place(table, position, size)] = stored[position - place.start]

    def _keep(self, row: BatchItem, table: list[int]) -> None:
        """Keep cells up to the end of each image that a row has computed."""
        keys = {job.key for job in row.jobs}
        for span in row.sequence.images:
            place = span.pages
            if place is None or span.key not in keys or not row.start < place.end <= row.start + row.count:
                continue
            found = [self.cells[_place(table, at, self.shape.page_size)] for at in range(place.start, place.end)]
            if NAN not in found:
                self.kept_pages[place.key] = found

    def _inside(self, row: BatchItem) -> dict[int, Input]:
        """Return what stands at positions of images inside a row's prompt; NaN where crops of them are missing."""
        found: dict[int, Input] = {}
        numbers = {job.key: job.number for job in row.jobs}
        for span in row.sequence.inside:
            for position in range(max(span.start, row.start), min(span.end, row.start + row.count)):
                image = self.embeddings.get(numbers[span.key], NAN)
                found[position] = image_input(image, position - span.start)
        return found

    def _leading(self, row: BatchItem) -> list[int]:
        """Return the cells of BOS and image; NaNs where crops of it are missing."""
        if not row.jobs:
            return [BOS_CELL]
        image = self.embeddings.get(row.jobs[0].number, NAN)
        if image == NAN:
            return [NAN] * self._prefix_length
        return [image_cell(image, position) for position in range(self._prefix_length)]

    def _spoil(self, twin: Twin, index: int) -> None:
        """Make a row's hidden state and all that it wrote NaNs, and what was copied from there."""
        cells, size, table = self.cells, self.shape.page_size, twin.rows[index]
        if twin.prefill is None:
            cells[table[WRITE_SLOT]] = NAN
            return
        row = twin.prefill.rows[index]
        for position in range(row.start, row.start + row.count):
            cells[_place(table, position, size)] = NAN
        self.copy_pages(twin.prefill.saves)


def _uploaded(group: CropGroup) -> tuple[int, ...]:
    """Read what a launch copies for a group: its crops, or at the first crop of an uncut image the whole of it."""
    crops = group.job.crops
    if isinstance(crops, UncutImage):
        data = crops.packed.tobytes() if group.first == 0 else b""
        return tuple(int.from_bytes(data[at : at + 3], "little") for at in range(0, len(data), 3))
    if isinstance(crops, StoredImage):
        tensors = (crops.embeddings, None if group.job.pages is None else group.job.pages.numbers)
        return tuple(number for one in tensors if one is not None for number in one.data.view(np.int64).tolist())
    chosen = crops.pixels[group.first : group.first + group.count]
    return tuple(int.from_bytes(crop.tobytes(), "little") for crop in chosen)


def _place(table: list[int], position: int, size: int) -> int:
    """Find a position's cell; rows of page tables begin with other columns."""
    page = table[PAGES + position // size]
    if page == 0:
        raise Violation(f"position {position} lies in the scratch page: {table}")
    return page * size + position % size


def _look(cells: list[int], table: list[int], cell: int, position: int, size: int) -> int:
    """Return the hidden state of a position: its cell, and an earlier one."""
    if cell == NAN:
        return NAN
    earlier = cell % (position + 1)
    page = table[PAGES + earlier // size]
    if page == 0:
        raise Violation(f"position {earlier} is read from the scratch page: {table}")
    seen = cells[page * size + earlier % size]
    return hash((cell, seen)) if seen != NAN else NAN


def _ids_of(words: list[int]) -> tuple[int, ...]:
    """List the ids of a mask, ascending."""
    key = tuple(words)
    ids = _IDS.get(key)
    if ids is None:
        ids = _IDS[key] = tuple(
            word * 32 + bit for word, bits in enumerate(words) for bit in range(32) if bits >> bit & 1
        )
    return ids


def _free(
    hidden: int,
    params: tuple[Any, ...],
    words: list[int],
    draw: float,
    top_p: float,
    decides: bool,
    seen: tuple[int, ...],
) -> Choice:
    """Choose an id among those that a mask allows; a penalty excludes seen ones."""
    permitted = unseen(_ids_of(words), seen)
    if hidden == NAN or not permitted:
        return Choice(0, finite=False)
    chosen = choose_id(hidden, nucleus(permitted, top_p), draw)
    end, coordinate = params[3], params[1]
    if not decides or end < 0:
        return Choice(chosen)
    return Choice(coordinate if chosen != end and coordinate >= 0 else chosen, probability=goes_on(hidden))

"""Prompts of any lengths in one pass: all rows of a launch on one axis, through a decoder made for that.

```
row 0                        row 1          row 2
[BOS][ image ][ tokens ]   [ tokens ]     [BOS][ tokens ]   [ padding ]      axis, T positions
start 0, block               start > 0      start 0           scratch page
```

Words are embedded inside the pass, by their ids. Other input is written before: images, and tokens
with a value.
"""

from collections.abc import Sequence

import numpy as np
import torch

from photonlite.batch import ScheduledBatch
from photonlite.device.base import Array
from photonlite.kernels.columns import QUERY_TILE
from photonlite.models.base import Model, PackedPrompts, PromptDecoder
from photonlite.runner.attention import PagedCache
from photonlite.runner.buffers import Buffers, HostViews, transfer
from photonlite.runner.graphs.capture import Capturer, GraphReport
from photonlite.runner.graphs.prefill import PrefillGraphs, prefill_sizes, tiles_for
from photonlite.runner.image_encoder import ImageEncoder
from photonlite.runner.input_embedding import InputEmbedding
from photonlite.runner.prefill.rows import PrefillRow, make_rows
from photonlite.runner.slot import (
    EMBEDDED,
    NO_VALUE,
    PAGES,
    POSITION_COLUMN,
    SCRATCH_PAGE,
    SLOT_COLUMN,
    WORD_COLUMN,
    Slot,
    SlotShape,
)


class PackedPrefill:
    """Runs prompts; see `runner.prefill.rows.Prefill`."""

    def __init__(
        self,
        decoder: PromptDecoder,
        model: Model,
        inputs: InputEmbedding,
        images: ImageEncoder,
        cache: PagedCache,
        shape: SlotShape,
    ) -> None:
        self._decoder = decoder
        self._model = model
        self._inputs = inputs
        self._images = images
        self._cache = cache
        self._shape = shape
        self._layout = shape.packed
        self._graphs = PrefillGraphs(prefill_sizes(model.shape.prefix_length, shape.max_tokens), shape.max_rows)
        state, device = inputs.bos(1)[0], cache.keys.device
        self._packed = torch.zeros(self._layout.words, dtype=torch.int32, device=device)
        self._table = torch.zeros(shape.max_rows, shape.max_pages, dtype=torch.int32, device=device)
        self._x = state.new_zeros(shape.max_tokens, model.shape.dim)
        self._hidden = state.new_zeros(shape.max_rows, model.shape.dim)

    def upload(self, buffers: Buffers, host: HostViews, slot: Slot, plan: ScheduledBatch) -> None:
        """Fill the table of positions, and copy it."""
        rows = make_rows(plan.rows, self._model.shape.prefix_length)
        size = self._size(rows)
        fill_packed(slot, rows, size, self._model.shape.bos_id)
        used = self._layout.used(size)
        transfer(buffers.packed[:used], host.packed[:used])

    def run(self, buffers: Buffers, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts in one pass; leave each row's last raw hidden state."""
        rows = make_rows(plan.rows, self._model.shape.prefix_length)
        count, size = len(rows), self._size(rows)
        used = self._layout.used(size)
        self._packed[:used].copy_(buffers.packed[:used])
        self._table[:count].copy_(buffers.rows[:count, PAGES:])
        self._embed(buffers, slot, rows)
        if self._graph(rows) is None:
            self._forward(size, _tiles(rows))
        else:
            self._graphs.replay(size)
        buffers.hidden[:count].copy_(self._hidden[:count])

    def capture(self, capturer: Capturer) -> GraphReport:
        """Capture a ladder of lengths, on the scratch page."""
        self._packed.zero_()
        return self._graphs.capture(capturer, self._forward)

    def rehearse(self, buffers: Buffers, positions: int) -> None:
        """Run the longest pass on the scratch page."""
        self._packed.zero_()
        size = min(max(positions, self._model.shape.max_context), self._shape.max_tokens)
        self._forward(size, tiles_for(size, self._shape.max_rows))

    def _size(self, rows: Sequence[PrefillRow]) -> int:
        """Return the positions of a pass, padding included."""
        return self._graph(rows) or sum(row.count for row in rows)

    def _graph(self, rows: Sequence[PrefillRow]) -> int | None:
        return self._graphs.size_for(sum(row.count for row in rows), _tiles(rows))

    def _embed(self, buffers: Buffers, slot: Slot, rows: Sequence[PrefillRow]) -> None:
        """Write images to the input, and all tokens if some of them have values."""
        count = sum(row.tokens for row in rows)
        valued = bool((slot.tokens[:count, 1] != NO_VALUE).any())
        tokens = self._inputs.tokens(buffers.tokens[:count][None])[0] if valued else None
        begin = 0
        for row in rows:
            if row.block:
                image = self._x[begin + 1 : begin + row.leading]
                found = None if row.job is None else self._images.embeddings(row.job)
                if found is None:  # its encode step failed, which fails this row only
                    image.fill_(torch.nan)
                else:
                    image.copy_(found)
            if tokens is not None:
                own = tokens[row.first : row.first + row.tokens]
                self._x[begin + row.leading : begin + row.count].copy_(own)
            begin += row.count

    def _forward(self, size: int, tiles: int) -> None:
        """Run so many positions and tiles from the fixed buffers to `_hidden`."""
        layout, packed = self._layout, self._packed
        places, ends = layout.places_of(packed, size), layout.ends_of(packed)
        words = places[:, WORD_COLUMN]
        embedded = self._model.embed(words.clamp(min=0))
        x = torch.where((words != EMBEDDED)[:, None], embedded, self._x[:size])
        prompts = PackedPrompts(
            places[:, POSITION_COLUMN],
            places[:, SLOT_COLUMN],
            layout.tiles_of(packed)[:tiles],
            self._table,
            ends[0],
            ends[1],
        )
        self._hidden.copy_(self._decoder(x, prompts, self._cache))


def fill_packed(slot: Slot, rows: Sequence[PrefillRow], size: int, bos_id: int) -> None:
    """Fill `slot.packed` from the slot's rows and tokens for a pass of `size` positions; see `PackedLayout`."""
    layout, page = slot.shape.packed, slot.shape.page_size
    columns = [(row.start, row.count, row.first, row.leading, row.block) for row in rows]
    starts, counts, firsts, leading, blocks = np.array(columns, np.int64).T
    begins = counts.cumsum() - counts
    row, within = _ranges(counts)
    total, position = len(row), starts[row] + within

    places = layout.places_of(slot.packed, size)
    places[:total, POSITION_COLUMN] = position
    places[:total, SLOT_COLUMN] = slot.rows[row, PAGES + position // page] * page + position % page
    places[:total, WORD_COLUMN] = _words(slot, within, within - leading[row], firsts[row], bos_id)
    places[total:] = (0, SCRATCH_PAGE * page, 0)

    ends = layout.ends_of(slot.packed)
    ends[:, len(rows) :] = 0
    ends[0, : len(rows)], ends[1, : len(rows)] = begins + counts - 1, starts + counts

    tiles = layout.tiles_of(slot.packed)
    row, within = _ranges(-(-counts // QUERY_TILE))
    first = within * QUERY_TILE
    queries = np.minimum(QUERY_TILE, counts[row] - first)
    tiles[: len(row)] = np.stack((row, begins[row] + first, queries, starts[row] + first, blocks[row]), axis=1)
    tiles[len(row) :] = 0


def _words(slot: Slot, within: Array, token: Array, first: Array, bos_id: int) -> Array:
    """Return the word at each position: `token` counts from each row's first, negative ones are BOS and image."""
    found = slot.tokens[np.maximum(token, 0) + np.minimum(first, slot.shape.max_tokens - 1)]
    word = np.where(found[:, 1] == NO_VALUE, found[:, 0], EMBEDDED)
    before = np.where(within == 0, bos_id, EMBEDDED)
    chosen: Array = np.where(token < 0, before, word)
    return chosen


def _ranges(counts: Array) -> tuple[Array, Array]:
    """Return for consecutive ranges of so many numbers the range of each number, and its place in it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (counts.cumsum() - counts)[owner]


def _tiles(rows: Sequence[PrefillRow]) -> int:
    return sum(-(-row.count // QUERY_TILE) for row in rows)

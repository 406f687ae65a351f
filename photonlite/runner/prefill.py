"""Prompts of any lengths in one pass: all rows of a launch on one axis.

```
row 0                        row 1          row 2
[BOS][ image ][ tokens ]   [ tokens ]     [BOS][ tokens ]   [ padding ]      axis, T positions
start 0, block               start > 0      start 0           scratch page
```

A model's decoder for packed prompts runs the pass, as a CUDA graph if captured; without one the model's forward pass
does, row by row in attention. Words are embedded inside the pass; images, and tokens with a value, are written before.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from photonlite.batch import BatchItem, ScheduledBatch
from photonlite.device.base import Array
from photonlite.kernels.columns import QUERY_TILE
from photonlite.models.base import Model, PackedPrompts, PromptDecoder
from photonlite.runner.attention import PagedCache, PrefillAttention, plan_free_attention
from photonlite.runner.buffers import Buffers, transfer
from photonlite.runner.graphs import Capturer, GraphReport, PromptGraphs, prefill_sizes, tiles_for
from photonlite.runner.images import ImageEncoder
from photonlite.runner.slot import EMBEDDED, NO_VALUE, PAGES, SCRATCH_PAGE, PromptRow, Slot, SlotShape
from photonlite.runner.tokens import InputEmbedding


class Prefill:
    """Runs prompts, in inference mode. Both slots share a pass's buffers: inputs are copied on the compute stream."""

    def __init__(
        self,
        decoder: PromptDecoder | None,
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
        self._graphs = PromptGraphs(prefill_sizes(model.shape.prefix_length, shape.max_tokens), shape.max_rows)
        device = cache.keys.device
        self._packed = torch.zeros(self._layout.words, dtype=torch.int32, device=device)
        self._table = torch.zeros(shape.max_rows, shape.max_pages, dtype=torch.int32, device=device)
        self._x = inputs.bos.new_zeros(shape.max_tokens, model.shape.dim)
        self._hidden = inputs.bos.new_zeros(shape.max_rows, model.shape.dim)

    def upload(self, buffers: Buffers, slot: Slot, plan: ScheduledBatch) -> None:
        rows = make_rows(plan.rows, self._model.shape.prefix_length)
        size, _ = self._size(rows)
        fill_packed(slot, rows, size, self._model.shape.bos_id)
        used = self._layout.used(size)
        transfer(buffers.packed[:used], slot.packed[:used])

    def run(self, buffers: Buffers, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts in one pass; leave each row's last raw hidden state in the buffers."""
        rows = make_rows(plan.rows, self._model.shape.prefix_length)
        count, (size, graphed) = len(rows), self._size(rows)
        used = self._layout.used(size)
        self._packed[:used].copy_(buffers.packed[:used])
        self._table[:count].copy_(buffers.rows[:count, PAGES:])
        self._embed(buffers, slot, rows)
        if graphed:
            self._graphs.replay(size)
        else:
            self._forward(size, sum(row.tiles for row in rows), rows)
        buffers.hidden[:count].copy_(self._hidden[:count])

    def capture(self, capturer: Capturer) -> GraphReport:
        """Capture a ladder of lengths, on the scratch page; nothing without a decoder of packed prompts."""
        if self._decoder is None:
            return GraphReport(0, 0.0, 0)
        self._packed.zero_()
        return self._graphs.capture(capturer, self._forward)

    def rehearse(self, positions: int) -> None:
        """Run the longest pass, of at least so many positions, on the scratch page."""
        self._packed.zero_()
        longest = self._model.shape.max_context
        size = min(max(positions, longest), self._shape.max_tokens)
        counts = [min(longest, size - begin) for begin in range(0, size, longest)]
        rows = [PromptRow(0, 0, count, 0, 1, 0, None) for count in counts]
        self._forward(size, tiles_for(size, self._shape.max_rows), rows)

    def _size(self, rows: Sequence[PromptRow]) -> tuple[int, bool]:
        """Return the positions of a pass, padding included, and whether a graph runs it."""
        positions = sum(row.count for row in rows)
        graph = self._graphs.size_for(positions, sum(row.tiles for row in rows))
        return graph or positions, graph is not None

    def _embed(self, buffers: Buffers, slot: Slot, rows: Sequence[PromptRow]) -> None:
        """Write images to the input, and all tokens if some of them have values."""
        count = sum(row.tokens for row in rows)
        valued = bool((slot.tokens[:count, 1] != NO_VALUE).any())
        tokens = self._inputs.tokens(buffers.tokens[:count]) if valued else None
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

    def _forward(self, size: int, tiles: int, rows: Sequence[PromptRow] = ()) -> None:
        """Run so many positions and tiles from the fixed buffers to `_hidden`; without a decoder those of `rows`."""
        layout, packed = self._layout, self._packed
        positions, slots, words = layout.places_of(packed, size).unbind(1)
        last, lengths = layout.ends_of(packed)
        embedded = self._model.embed(words.clamp(min=0))
        x = torch.where((words != EMBEDDED)[:, None], embedded, self._x[:size])
        if self._decoder is not None:
            prompts = PackedPrompts(positions, slots, layout.tiles_of(packed)[:tiles], self._table, last, lengths)
            self._hidden.copy_(self._decoder(x, prompts, self._cache))
            return
        attention = PrefillAttention(self._cache, rows, slots, self._table)
        with plan_free_attention():
            self._hidden.copy_(self._model.forward(x[None], positions, attention)[0, last])


def make_rows(items: Iterable[BatchItem], prefix_length: int) -> list[PromptRow]:
    """Describe the rows of a launch, whose tokens lie row by row; BOS and an image have `prefix_length` positions."""
    rows: list[PromptRow] = []
    first = 0
    for index, item in enumerate(items):
        block = prefix_length if item.job is not None else 0
        leading = 0 if item.start else block or 1
        job = None if item.job is None else item.job.number
        rows.append(PromptRow(index, item.start, item.count, first, leading, block, job))
        first += item.count - leading
    return rows


def fill_packed(slot: Slot, rows: Sequence[PromptRow], size: int, bos_id: int) -> None:
    """Fill `slot.packed` from the slot's rows and tokens for a pass of `size` positions; see `PackedLayout`."""
    layout, page = slot.shape.packed, slot.shape.page_size
    columns = [(row.start, row.count, row.first, row.leading, row.block) for row in rows]
    starts, counts, firsts, leading, blocks = np.array(columns, np.int64).T
    begins = counts.cumsum() - counts
    row, within = _ranges(counts)
    total, position = len(row), starts[row] + within

    places = layout.places_of(slot.packed, size)
    places[:total, 0] = position
    places[:total, 1] = slot.rows[row, PAGES + position // page] * page + position % page
    places[:total, 2] = _words(slot, within, within - leading[row], firsts[row], bos_id)
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

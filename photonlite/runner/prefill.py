"""Prompts of any lengths in one pass: all rows of a launch on one axis, those that decode first.

```
row 0                        row 1          row 2
[BOS][ image ][ tokens ]   [ tokens ]     [BOS][ tokens ]   [ padding ]      axis, T positions
start 0, block               start > 0      start 0           scratch page

        cached | block  | tail        cached   positions before the first, gathered through the page table
block      x   |   x    |             block    BOS and image, or the whole prompt: every position sees every other
tail       x   |   x    | up to self  tail     the rest: causal
```

A model's decoder for packed prompts runs the pass, as a CUDA graph if captured; without one the model's forward pass
does, row by row in attention. Words are embedded inside the pass; images, and tokens with a value, are written before.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from photonlite.batch import BatchItem
from photonlite.device.base import Array
from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.autotune import plan_free_attention
from photonlite.kernels.columns import QUERY_TILE
from photonlite.kernels.reference.attention import ScoreRule, dequantise, indexable, quantise, write_kv
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import Model, PackedPrompts, PromptDecoder
from photonlite.models.layers import Attention, attend
from photonlite.runner.buffers import Buffers, PagedCache, transfer
from photonlite.runner.context import ForwardContext
from photonlite.runner.graphs import LONGEST, Capturer, GraphReport, PromptGraphs, prefill_sizes, tiles_for
from photonlite.runner.slots import EMBEDDED, NO_VALUE, PAGES, SCRATCH_PAGE, Slot


class ImagePart(NamedTuple):
    """Positions of an image in a row; the earlier ones of the image, if there are any, are cached."""

    job: int  # number of the image's encode job
    place: int  # in the row
    first: int  # of the image's positions
    size: int


@dataclass(frozen=True, slots=True)
class PromptRow:
    index: int  # of the launch
    start: int  # first position that gets keys and values; the earlier ones are cached
    count: int  # of such positions
    first: int  # its first token among the uploaded ones
    # Positions before its tokens: BOS, and a leading image that is not cached; the first one of a row that decodes; 0
    # for another resumed row.
    leading: int
    block: int  # end of the positions that see each other in both directions; 0 where it begins behind them
    images: tuple["ImagePart", ...]  # that it computes
    turns: Array | None  # [count, axes]: rotary positions, where a model has several axes

    @property
    def tokens(self) -> int:
        """Number of its tokens, which follow BOS and image from `start` on."""
        return self.count - self.leading

    @property
    def is_pending(self) -> bool:
        """Whether it decodes: the input of its first position is in the pending table."""
        return self.start > 0 and self.leading > 0

    @property
    def tiles(self) -> int:
        return -(-self.count // QUERY_TILE)


class Prefill:
    """Runs prompts, in inference mode. Both slots share a pass's buffers: inputs are copied on the compute stream.

    With a bank the decoder adds terms of its adapters, by the slots in `packed`.
    """

    def __init__(
        self,
        decoder: PromptDecoder | None,
        context: ForwardContext,
        bank: AdapterBank | None = None,
    ) -> None:
        self._decoder, self._context, self._bank = decoder, context, bank
        self._model, self._shape = model, shape = context.model, context.shape
        self._graphs: PromptGraphs | None = None
        device, inputs = context.pending.device, context.inputs
        self._packed = torch.zeros(shape.packed_words(shape.max_tokens), dtype=torch.int32, device=device)
        self._table = torch.zeros(shape.max_rows, shape.max_pages, dtype=torch.int32, device=device)
        self._x = inputs.bos.new_zeros(shape.max_tokens, model.shape.dim)
        levels = model.shape.levels
        # What images add behind the decoder's first layers, 0 elsewhere; None where a model has no such features.
        self._deepstack = self._x.new_zeros(levels - 1, *self._x.shape) if levels > 1 else None
        self._hidden = inputs.bos.new_zeros(shape.max_rows, model.shape.dim)

    def fill(self, slot: Slot, rows: Sequence[PromptRow]) -> None:
        """Fill the host array that `upload` copies."""
        fill_packed(slot, rows, self._size(rows)[0], self._model.shape.bos_id)

    def upload(self, buffers: Buffers, slot: Slot, rows: Sequence[PromptRow]) -> None:
        used = self._shape.packed_words(self._size(rows)[0])
        transfer(buffers.packed[:used], slot.packed[:used])

    def run(self, buffers: Buffers, slot: Slot, rows: Sequence[PromptRow], bank: AdapterBank | None = None) -> None:
        """Run prompts in one pass; leave each row's last raw hidden state in the buffers.

        Given a bank, its model runs the pass instead of the decoder: some rows have adapters, by `slot.adapters`.
        """
        count, (size, graphs) = len(rows), self._size(rows)
        used = self._shape.packed_words(size)
        self._packed[:used].copy_(buffers.packed[:used])
        self._table[:count].copy_(buffers.rows[:count, PAGES:])
        self._embed(buffers, slot, rows)
        if bank is not None:
            slots, counts = slot.adapters[:count].tolist(), [row.count for row in rows]
            adapters = AdapterRows.of(slots, counts, self._packed.device)
            with bank.running(adapters) as model:
                self._forward_plain(size, rows, model)
        elif graphs is not None:
            graphs.replay(size)
        else:
            self._forward(size, sum(row.tiles for row in rows), rows)
        buffers.hidden[:count].copy_(self._hidden[:count])

    def capture(self, capturer: Capturer, longest: int = LONGEST) -> GraphReport:
        """Capture lengths up to `longest`, on the scratch page; nothing without a decoder of packed prompts."""
        if self._decoder is None:
            return GraphReport(0, 0.0, 0)
        self._packed.zero_()
        sizes = prefill_sizes(self._model.shape.prefix_length, min(longest, self._shape.max_tokens))
        self._graphs = PromptGraphs(sizes, self._shape.max_rows, mixed=self._shape.mixed)
        return self._graphs.capture(capturer, self._forward)

    def rehearse(self, positions: int) -> None:
        """Run the longest pass, of at least so many positions, on the scratch page."""
        self._packed.zero_()
        longest = self._model.shape.max_context
        size = min(max(positions, longest), self._shape.max_tokens)
        counts = [min(longest, size - begin) for begin in range(0, size, longest)]
        rows = [PromptRow(0, 0, count, 0, 1, 0, (), None) for count in counts]
        self._forward(size, tiles_for(size, self._shape.max_rows, mixed=self._shape.mixed), rows)

    def _size(self, rows: Sequence[PromptRow]) -> tuple[int, PromptGraphs | None]:
        """Return the positions of a pass, padding included, and the graphs if one of them runs it."""
        positions = sum(row.count for row in rows)
        if self._graphs is None or (size := self._graphs.size_for(positions, sum(row.tiles for row in rows))) is None:
            return positions, None
        return size, self._graphs

    def _embed(self, buffers: Buffers, slot: Slot, rows: Sequence[PromptRow]) -> None:
        """Write images to the input, what the first rows decode, and all tokens if some of them have values."""
        count = sum(row.tokens for row in rows)
        if decoding := sum(row.is_pending for row in rows):
            found = self._context.embed_pending(buffers.rows[:decoding])
            # Each of these rows is one tile, which says where on the axis it begins.
            self._x.index_copy_(0, self._shape.tiles_of(self._packed)[:decoding, 1].long(), found)
        if self._deepstack is not None:
            self._deepstack[:, : sum(row.count for row in rows)].zero_()
        valued = bool((slot.tokens[:count, 1] != NO_VALUE).any())
        tokens = self._context.inputs.tokens(buffers.tokens[:count]) if valued else None
        begin = 0
        for row in rows:
            if tokens is not None:
                own = tokens[row.first : row.first + row.tokens]
                self._x[begin + row.leading : begin + row.count].copy_(own)
            for part in row.images:
                self._embed_image(part, slice(begin + part.place, begin + part.place + part.size))
            begin += row.count

    def _embed_image(self, part: "ImagePart", places: slice) -> None:
        found = self._context.images.embeddings(part.job)
        if found is None:  # its encode step failed, which fails this row only
            self._x[places].fill_(torch.nan)
            return
        first, *others = found[:, part.first : part.first + part.size]
        self._x[places].copy_(first)
        if self._deepstack is not None:
            for target, features in zip(self._deepstack, others, strict=True):
                target[places].copy_(features)

    def _forward(self, size: int, tiles: int, rows: Sequence[PromptRow] = ()) -> None:
        """Run so many positions and tiles from the fixed buffers to `_hidden`; without a decoder those of `rows`."""
        if self._decoder is None:
            self._forward_plain(size, rows, self._model)
            return
        shape, packed = self._shape, self._packed
        positions, slots, _, adapters = shape.places_of(packed, size).unbind(1)
        last, lengths = shape.ends_of(packed)
        x, turns, deepstack = self._inputs_of(size)
        place = positions, slots, shape.tiles_of(packed)[:tiles], self._table, last, lengths
        with nullcontext() if self._bank is None else self._bank.running(AdapterRows(size, None, adapters)):
            self._hidden.copy_(self._decoder(x, PackedPrompts(*place, turns, deepstack), self._context.cache))

    def _inputs_of(self, size: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return embeddings of a pass, rotary positions if a model has several axes, and features behind layers."""
        words = self._shape.places_of(self._packed, size)[:, 2]
        embedded = self._model.embed(words.clamp(min=0))
        x = torch.where((words != EMBEDDED)[:, None], embedded, self._x[:size])
        turns = self._shape.turns_of(self._packed, size) if self._shape.axes else None
        return x, turns, None if self._deepstack is None else self._deepstack[:, :size]

    def _forward_plain(self, size: int, rows: Sequence[PromptRow], model: Model) -> None:
        """Run the positions of `rows` in a model's own operations, without the padding behind them."""
        shape, packed, count = self._shape, self._packed, sum(row.count for row in rows)
        positions, slots, _, _ = shape.places_of(packed, size)[:count].unbind(1)
        last = shape.ends_of(packed)[0]
        x, turns, deepstack = self._inputs_of(size)
        x, turns = x[:count], None if turns is None else turns[:count]
        deepstack = None if deepstack is None else deepstack[:, :count]
        attention = prompt_attention(self._context.cache, rows, slots, self._table)
        features = () if deepstack is None or not any(row.images for row in rows) else (deepstack[:, None],)
        positions = positions if turns is None else turns.T
        with plan_free_attention(x.device):
            self._hidden.copy_(model.forward(x[None], positions, attention, *features)[0, last])


def make_rows(items: Iterable[BatchItem]) -> list[PromptRow]:
    """Describe the rows of a launch, whose tokens lie row by row."""
    rows: list[PromptRow] = []
    first = 0
    for index, item in enumerate(items):
        sequence = item.sequence
        leading = 1 if item.pending else 0 if item.start else sequence.prefix_len
        block = sequence.block if item.start < sequence.block else 0
        if block and item.start not in (0, block - 1):
            raise AssertionError(f"position {item.start} is in the middle of a block of {block}, which is never split")
        if item.start + item.count < block:
            raise AssertionError(f"{item.count} positions of a block of {block} are computed, which is never split")
        rows.append(PromptRow(index, item.start, item.count, first, leading, block, _image_parts(item), _turns(item)))
        first += item.count - leading
    return rows


def _image_parts(item: BatchItem) -> tuple[ImagePart, ...]:
    jobs = {job.key: job.number for job in item.jobs}
    parts = []
    for span in item.sequence.images:
        begin = max(span.start, item.start)
        end = min(span.end, item.start + item.count)
        if end > begin:
            parts.append(ImagePart(jobs[span.key], begin - item.start, begin - span.start, end - begin))
    return tuple(parts)


def _turns(item: BatchItem) -> Array | None:
    """Return the rotary positions of a row; those behind the prompt are the same on all axes."""
    turns = item.sequence.turns
    if turns is None:
        return None
    known = turns.axes[item.start : item.start + item.count]
    behind = np.arange(item.start + len(known), item.start + item.count, dtype=np.int32) + turns.shift
    return np.concatenate((known, np.repeat(behind[:, None], known.shape[1], axis=1)))


def fill_packed(slot: Slot, rows: Sequence[PromptRow], size: int, bos_id: int | None) -> None:
    """Fill `slot.packed` from the slot's rows and tokens for a pass of `size` positions; see `SlotShape`."""
    shape, page = slot.shape, slot.shape.page_size
    columns = [(row.start, row.count, row.first, row.leading, row.block) for row in rows]
    starts, counts, firsts, leading, blocks = np.array(columns, np.int64).T
    begins = counts.cumsum() - counts
    row, within = _ranges(counts)
    total, position = len(row), starts[row] + within

    places = shape.places_of(slot.packed, size)
    places[:total, 0] = position
    places[:total, 1] = slot.rows[row, PAGES + position // page] * page + position % page
    places[:total, 2] = _words(slot, position, within - leading[row], firsts[row], bos_id)
    places[:total, 3] = slot.adapters[row] if slot.adapted else 0
    places[total:] = (0, SCRATCH_PAGE * page, 0, 0)
    if shape.axes:
        turns = shape.turns_of(slot.packed, size)
        turns[:total] = np.concatenate([row.turns for row in rows if row.turns is not None])
        turns[total:] = 0

    ends = shape.ends_of(slot.packed)
    ends[:, len(rows) :] = 0
    ends[0, : len(rows)], ends[1, : len(rows)] = begins + counts - 1, starts + counts

    tiles = shape.tiles_of(slot.packed)
    row, within = _ranges(-(-counts // QUERY_TILE))
    first = within * QUERY_TILE
    queries = np.minimum(QUERY_TILE, counts[row] - first)
    tiles[: len(row)] = np.stack((row, begins[row] + first, queries, starts[row] + first, blocks[row]), axis=1)
    tiles[len(row) :] = 0


def _words(slot: Slot, position: Array, token: Array, first: Array, bos_id: int | None) -> Array:
    """Return the word at each position: `token` counts from each row's first; negative ones are embedded, or BOS."""
    found = slot.tokens[np.maximum(token, 0) + np.minimum(first, slot.shape.max_tokens - 1)]
    word = np.where(found[:, 1] == NO_VALUE, found[:, 0], EMBEDDED)
    before = np.where(position == 0, EMBEDDED if bos_id is None else bos_id, EMBEDDED)
    chosen: Array = np.where(token < 0, before, word)
    return chosen


def _ranges(counts: Array) -> tuple[Array, Array]:
    """Return for consecutive ranges of so many numbers the range of each number, and its place in it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (counts.cumsum() - counts)[owner]


def prompt_attention(cache: PagedCache, rows: Sequence[PromptRow], slots: Tensor, table: Tensor) -> Attention:
    """Return attention for prompts on one axis, written to `slots`, int ``[T]``; `table`, int ``[R, P]``: their pages.

    In FP8 it sees its own keys and values rounded as the cache stores them, so that results do not depend on which
    positions share a launch.
    """
    slots = slots.long()
    pages = [table[row.index, : -(-row.start // cache.page_size)].long() for row in rows]
    # Computed positions of the block; those behind it see what is cached, the block, and those up to themselves.
    blocks = [max(0, row.block - row.start) for row in rows]
    masks = [
        torch.ones(row.count - block, row.start + row.count, dtype=torch.bool, device=slots.device).tril(
            row.start + block
        )
        for row, block in zip(rows, blocks, strict=True)
    ]

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        keys, values = cache.layer(layer)
        k_scale, v_scale = cache.scales[layer]
        write_kv(keys, values, k[0], v[0], slots, k_scale, v_scale)
        k = dequantise(quantise(k, keys.dtype, k_scale), k.dtype, k_scale)
        v = dequantise(quantise(v, keys.dtype, v_scale), v.dtype, v_scale)
        parts: list[Tensor] = []
        begin = 0
        for row, cached, mask, count in zip(rows, pages, masks, blocks, strict=True):
            end, block = begin + row.count, begin + count
            row_k, row_v = k[:, begin:end], v[:, begin:end]
            if row.start:
                row_k = torch.cat((_gather(keys, cached, row.start, k.dtype, k_scale), row_k), dim=1)
                row_v = torch.cat((_gather(values, cached, row.start, v.dtype, v_scale), row_v), dim=1)
            if count:  # attended to without a mask: the fastest kernels take none
                parts.append(attend(q[:, begin:block], row_k[:, : row.block], row_v[:, : row.block], None, rule))
            if end > block:
                seen = mask if rule is None else rule.limit(mask)
                parts.append(attend(q[:, block:end], row_k, row_v, seen, rule))
            begin = end
        return torch.cat(parts, dim=1)

    return attention


def _gather(pages: Tensor, table: Tensor, count: int, dtype: torch.dtype, scale: float) -> Tensor:
    """Return the first `count` cached positions of a row, ``[1, count, H_kv, D]``."""
    found = indexable(pages)[table].view(pages.dtype).flatten(0, 1)[:count]
    return dequantise(found, dtype, scale)[None]

"""Prompts in padded batches through the forward pass of a model: runs anywhere, the reference for packed prompts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from photonlite.batch import ScheduledBatch
from photonlite.models.base import Model
from photonlite.runner.attention import PagedCache, PrefillAttention, plan_free_attention
from photonlite.runner.buffers import Buffers, HostViews
from photonlite.runner.graphs.capture import Capturer, GraphReport
from photonlite.runner.image_encoder import ImageEncoder
from photonlite.runner.input_embedding import InputEmbedding
from photonlite.runner.prefill.rows import PaddedBatch, PrefillRow, largest_batches, make_batches
from photonlite.runner.slot import PAGES, SCRATCH_PAGE, Slot, SlotShape


class PaddedPrefill:
    """Runs prompts; see `runner.prefill.rows.Prefill`."""

    def __init__(
        self, model: Model, inputs: InputEmbedding, images: ImageEncoder, cache: PagedCache, shape: SlotShape
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._images = images
        self._cache = cache
        self._shape = shape
        self._device = cache.keys.device

    def upload(self, buffers: Buffers, host: HostViews, slot: Slot, plan: ScheduledBatch) -> None:
        """Copy nothing: rows and tokens are enough."""

    def run(self, buffers: Buffers, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts, batch by batch; leave each row's last raw hidden state."""
        with plan_free_attention():
            for batch in make_batches(plan.rows, self._model.shape.prefix_length):
                self._prefill(buffers, batch)

    def capture(self, capturer: Capturer) -> GraphReport:
        """Capture nothing: every batch has another shape."""
        return GraphReport(0, 0.0, 0)

    def rehearse(self, buffers: Buffers, positions: int) -> None:
        """Run the largest batches on the scratch page."""
        with plan_free_attention():
            for batch in largest_batches(self._model.shape, self._shape.max_rows, positions):
                self._prefill(buffers, batch)

    def _prefill(self, buffers: Buffers, batch: PaddedBatch) -> None:
        rows, size = batch.rows, self._shape.page_size
        index, start, end, first, tokens = self._columns(rows)
        x = self._prompts(buffers, batch, first, tokens)  # [n, T, dim]
        positions = start[:, None] + self._arange(x.shape[1])
        table = buffers.rows[:, PAGES:].index_select(0, index).long()
        # Padding may reach past the page table; it is written to the scratch page.
        page = table.gather(1, (positions // size).clamp(max=table.shape[1] - 1))
        slots = (page * size + positions % size).masked_fill(positions >= end[:, None], SCRATCH_PAGE * size)
        cached = table[:, : -(-batch.cached // size)]
        attention = PrefillAttention(self._cache, slots, batch.block, cached, start)
        hidden = self._model.forward(x, positions, attention)
        buffers.hidden.index_copy_(0, index, hidden[self._arange(len(rows)), end - start - 1])

    def _prompts(self, buffers: Buffers, batch: PaddedBatch, first: Tensor, tokens: Tensor) -> Tensor:
        """Embed BOS, images and tokens of a batch, ``[n, T, dim]``; padding is zero."""
        count = len(batch.rows)
        column = self._arange(batch.tokens)
        place = (first[:, None] + column).clamp(max=self._shape.max_tokens - 1)
        x = self._inputs.tokens(buffers.tokens[place]).masked_fill((column >= tokens[:, None])[..., None], 0)
        if not batch.leading:
            return x
        if not batch.block:
            return torch.cat((self._inputs.bos(count), x), dim=1)
        images = torch.stack([self._image(row.job) for row in batch.rows])
        return torch.cat((self._inputs.bos(count), images, x), dim=1)

    def _image(self, job: int | None) -> Tensor:
        """Return an image's embeddings; NaN where its encode step failed, which fails this row only."""
        found = self._images.embeddings(job) if job is not None else None
        if found is not None:
            return found
        shape = self._model.shape.prefix_length - 1, self._model.shape.dim
        return self._inputs.bos(1).new_full(shape, torch.nan)

    def _columns(self, rows: Sequence[PrefillRow]) -> tuple[Tensor, ...]:
        """Return index, start, end, first token and token count of each row: five of int64 ``[n]``."""
        values = [(row.index, row.start, row.start + row.count, row.first, row.tokens) for row in rows]
        # From page-locked memory, so that the host need not wait for the copy.
        table = torch.tensor(values, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return table.to(self._device, non_blocking=True).unbind(1)

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self._device)

"""The body in production: a model, a paged KV cache and fixed buffers on one device.

```
slot (host)          Buffers (device, one set a slot)
rows, tokens ──────> rows, tokens ─┐
crops ─────────────> crops ─ encode ── features ── pictures ─┐   kept by job until forgotten
                                   ├─ prefill <──────────────┘
pending ── embed ──────────────────┴─ decode ──> hidden
choices, masks ────> choices, masks ──────────── finalize ──> results ──> results (host)
                                                     └──────> pending, by row
```

Whatever a copy reads or a captured graph uses is allocated here once. Decode and finalize neither allocate outside a
graph's pool nor wait for the device.
"""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob, PageCopy, Plan
from photonlite.models.base import Model
from photonlite.runner.attention import DecodeAttention, PagedCache, PrefillAttention, plan_free_attention
from photonlite.runner.buffers import Buffers, HostViews, transfer
from photonlite.runner.choices import BIN1, Variant
from photonlite.runner.graphs import Capturer, CudaCapturer, GraphKey, GraphOptions, GraphReport, GraphSet, Progress
from photonlite.runner.inputs import InputEmbedding
from photonlite.runner.pictures import PictureEncoder
from photonlite.runner.prefill import Batch, Span, largest_batches, make_batches
from photonlite.runner.sampling import choose
from photonlite.runner.slot import PAGES, PENDING_ROW, POSITION, SCRATCH_PAGE, Slot, SlotShape


class TorchBody:
    """Runs the work of steps on one device; see `runner.body.Body`.

    The constructor returns when all that it queued is done. Other methods are called in inference mode.

    Args:
        model: In evaluation mode, on the device.
        device: Where it is.
        dtype: Of its weights, and of keys and values.
        shape: Of the slots.
        pages: Of the KV cache, the scratch page among them.
        depth: Slots.
        max_crops: Crops of an encode launch at most.

    Attributes:
        shape: Of the slots.
        cache: Keys and values of all sequences.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        dtype: torch.dtype,
        shape: SlotShape,
        pages: int,
        depth: int,
        *,
        max_crops: int,
    ) -> None:
        self.shape = shape
        self._model = model
        self._device = device
        self._graphs: GraphSet | None = None
        self._views: dict[int, tuple[Slot, HostViews]] = {}
        self._pictures = PictureEncoder(model.vision)
        with torch.inference_mode():
            self._inputs = InputEmbedding(model, device)
            self.cache = PagedCache(model.shape, pages, shape.page_size, device, dtype)
            self._pending = torch.zeros(shape.pending_rows, BIN1 + 1, dtype=torch.int32, device=device)
            size, dim = model.crop_spec.crop_size, model.shape.dim
            self._buffers = [
                Buffers.allocate(shape, device, dtype, dim=dim, max_crops=max_crops, crop_size=size)
                for _ in range(depth)
            ]
        self._synchronize()

    @property
    def vocab_size(self) -> int:
        """Ids that masks speak of."""
        return self._model.shape.vocab_size

    @property
    def coordinates(self) -> Sequence[float]:
        """The coordinate of each bin."""
        return self._inputs.coordinates

    @property
    def sizes(self) -> Sequence[float]:
        """The width or height of each bin."""
        return self._inputs.sizes

    def capture(
        self, options: GraphOptions, capturer: Capturer | None = None, progress: Progress | None = None
    ) -> GraphReport:
        """Capture decode steps as graphs, before the first step: what runs here writes to the scratch page.

        Args:
            options: Which sizes.
            capturer: Makes the graphs; CUDA's unless given.
            progress: Is told how many graphs are done, of how many; None shows a bar where stderr is a terminal.
        """
        step: Callable[[Tensor], Tensor] = self._step
        patience: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if options.compile:
            step = torch.compile(self._step, dynamic=False)
            # Each size is compiled anew; by default the ninth would run as it is, without a word.
            patience = torch._dynamo.config.patch(recompile_limit=2 * len(options.sizes))

        def forward(slot: int, size: int) -> None:
            buffers = self._buffers[slot]
            buffers.hidden[:size].copy_(step(buffers.rows[:size]))

        def finalize(slot: int, size: int, variant: Variant, sampled: bool) -> None:
            self._finalize(self._buffers[slot], size, variant, sampled)

        self._graphs = GraphSet(options, depth=len(self._buffers), max_rows=self.shape.max_rows)
        with torch.inference_mode(), patience:
            report = self._graphs.capture(capturer or CudaCapturer(self._device), forward, finalize, progress)
            self._pending.zero_()
        self._synchronize()
        return report

    def padded(self, rows: int) -> tuple[int, bool]:
        """Give the rows that a decode step of `rows` rows runs with, and whether a graph runs it."""
        if self._graphs is None or (size := self._graphs.size_for(rows)) is None:
            return rows, False
        return size, True

    def upload_rows(self, slot: Slot, count: int) -> None:
        """Copy the first `count` of `slot.rows` to the device."""
        transfer(self._buffers[slot.index].rows[:count], self._host(slot).rows[:count])

    def upload_tokens(self, slot: Slot, count: int) -> None:
        """Copy the first `count` of `slot.tokens` to the device."""
        transfer(self._buffers[slot.index].tokens[:count], self._host(slot).tokens[:count])

    def upload_crops(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Copy the groups' pixels to the device, one behind the other."""
        filled = 0
        for group in groups:
            pixels = torch.from_numpy(group.job.crops.pixels[group.first : group.first + group.count])
            transfer(self._buffers[slot.index].crops[filled : filled + group.count], pixels)
            filled += group.count

    def encode(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Encode the uploaded crops in one batch; a job's last crop turns its features into embeddings."""
        count = sum(group.count for group in groups)
        with plan_free_attention():
            self._pictures.encode(self._buffers[slot.index].crops[:count], groups)

    def prefill(self, slot: Slot, plan: Plan) -> None:
        """Run prompts; leave each row's last raw hidden state."""
        with plan_free_attention():
            for batch in make_batches(plan.rows, self._model.shape.prefix_length):
                self._prefill(self._buffers[slot.index], batch)

    def decode(self, slot: Slot, count: int) -> None:
        """Run one position of `count` rows; leave their raw hidden states."""
        if self._graphs is not None and self._graphs.replay(GraphKey(slot.index, count)):
            return
        buffers = self._buffers[slot.index]
        rows = buffers.rows[:count]
        if self._device.type == "cpu":
            # The reference gathers every page of the table: it gets those in use. On a card shapes stay as they are.
            rows = rows[:, : PAGES + int(slot.rows[:count, POSITION].max()) // self.shape.page_size + 1]
        buffers.hidden[:count].copy_(self._step(rows))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages, keys and values of all layers."""
        self.cache.copy(copies)

    def upload_choices(self, slot: Slot, count: int, *, masked: bool) -> None:
        """Copy the first `count` of `slot.choices`, and of `slot.masks` if `masked`, to the device."""
        buffers, host = self._buffers[slot.index], self._host(slot)
        transfer(buffers.choices[:count], host.choices[:count])
        if masked:
            transfer(buffers.masks[:count], host.masks[:count])

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        """Choose a token for each row with the heads of the variant; put it into the pending table and the results."""
        if self._graphs is None or not self._graphs.replay(GraphKey(slot.index, count, variant, sampled)):
            self._finalize(self._buffers[slot.index], count, variant, sampled)

    def download(self, slot: Slot, count: int) -> None:
        """Copy the first `count` results to `slot.results`."""
        transfer(self._host(slot).results[:count], self._buffers[slot.index].results[:count])

    def forget(self, job: EncodeJob) -> None:
        """Let go of a job's features and embeddings."""
        self._pictures.forget(job)

    def rehearse(self, positions: int, pictures: int) -> None:
        """Run the largest launches once, on the scratch page, so that the memory they take can be measured.

        Args:
            positions: That a launch prefills at most.
            pictures: Whose features are kept meanwhile.
        """
        buffers, rows = self._buffers[0], self.shape.max_rows
        with torch.inference_mode(), plan_free_attention():
            features = self._model.vision.encode(buffers.crops)
            crops = 1 + self._model.crop_spec.max_crops
            kept = features.new_empty(pictures * crops, *features.shape[1:])
            for batch in largest_batches(self._model.shape, rows, positions):
                self._prefill(buffers, batch)
            buffers.hidden.copy_(self._step(buffers.rows))
            self._finalize(buffers, rows, "mixed", sampled=True)
            del kept  # it had to be there while the others ran
        self._synchronize()

    def close(self) -> None:
        """Let go of the device's memory; the work must be done."""
        self._graphs = None
        self.cache.close()
        self._pictures.clear()
        self._buffers.clear()
        self._views.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _step(self, rows: Tensor) -> Tensor:
        """Map rows, int32 ``[B, 3 + P]``, to the raw hidden states of their next position, ``[B, dim]``."""
        x = self._inputs.pending(self._pending.index_select(0, rows[:, PENDING_ROW]))[:, None]  # [B, 1, dim]
        positions = rows[:, POSITION : POSITION + 1]
        return self._model.forward(x, positions, DecodeAttention(self.cache, rows))[:, 0]

    def _finalize(self, buffers: Buffers, count: int, variant: Variant, sampled: bool) -> None:
        hidden, choices, masks = buffers.hidden[:count], buffers.choices[:count], buffers.masks[:count]
        results = choose(self._model, hidden, choices, masks, variant=variant, sampled=sampled)
        buffers.results[:count].copy_(results)
        self._pending.index_copy_(0, buffers.rows[:count, PENDING_ROW].long(), results[:, : BIN1 + 1])

    def _prefill(self, buffers: Buffers, batch: Batch) -> None:
        spans, size = batch.spans, self.shape.page_size
        index, start, end, first, tokens = self._columns(spans)
        x = self._prompts(buffers, batch, first, tokens)  # [n, T, dim]
        positions = start[:, None] + self._arange(x.shape[1])
        table = buffers.rows[:, PAGES:].index_select(0, index).long()
        # Padding may reach past the page table; it is written to the scratch page.
        page = table.gather(1, (positions // size).clamp(max=table.shape[1] - 1))
        slots = (page * size + positions % size).masked_fill(positions >= end[:, None], SCRATCH_PAGE * size)
        cached = table[:, : -(-batch.cached // size)]
        attention = PrefillAttention(self.cache, slots, batch.block, cached, start)
        hidden = self._model.forward(x, positions, attention)
        buffers.hidden.index_copy_(0, index, hidden[self._arange(len(spans)), end - start - 1])

    def _prompts(self, buffers: Buffers, batch: Batch, first: Tensor, tokens: Tensor) -> Tensor:
        """Embed BOS, pictures and tokens of a batch, ``[n, T, dim]``; padding is zero."""
        count = len(batch.spans)
        column = self._arange(batch.tokens)
        place = (first[:, None] + column).clamp(max=self.shape.max_tokens - 1)
        x = self._inputs.tokens(buffers.tokens[place]).masked_fill((column >= tokens[:, None])[..., None], 0)
        if not batch.leading:
            return x
        if not batch.block:
            return torch.cat((self._inputs.bos(count), x), dim=1)
        pictures = torch.stack([self._picture(span.job) for span in batch.spans])
        return torch.cat((self._inputs.bos(count), pictures, x), dim=1)

    def _picture(self, job: int | None) -> Tensor:
        """Give a picture's embeddings: no numbers where its encode step failed, which spoils this row alone."""
        found = self._pictures.embeddings(job) if job is not None else None
        if found is not None:
            return found
        shape = self._model.shape.prefix_length - 1, self._model.shape.dim
        return torch.full(shape, torch.nan, device=self._device, dtype=self.cache.keys.dtype)

    def _columns(self, spans: Sequence[Span]) -> tuple[Tensor, ...]:
        """Give index, start, end, first token and count of tokens of each span: five of int64 ``[n]``."""
        values = [(span.index, span.start, span.start + span.count, span.first, span.tokens) for span in spans]
        # From page-locked memory, so that the host need not wait for the copy.
        table = torch.tensor(values, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return table.to(self._device, non_blocking=True).unbind(1)

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self._device)

    def _host(self, slot: Slot) -> HostViews:
        known = self._views.get(slot.index)
        if known is None or known[0] is not slot:
            known = self._views[slot.index] = slot, HostViews.of(slot)
        return known[1]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

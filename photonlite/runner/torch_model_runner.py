"""The model runner in production: a model, a paged KV cache and fixed buffers on one device.

```
slot (host)          Buffers (device, one set a slot)
rows, tokens ──────> rows, tokens ─┐
crops, images ───> crops ─ encode ── features ── images ─┐   kept by job until forgotten
                                   ├─ prefill <──────────────┘
pending ── embed ──────────────────┴─ decode ──> hidden
choices, masks ────> choices, masks ──────────── finalize ──> results ──> results (host)
scored ────────────> scored                              ├──> scores ───> scores           only where rows want scores
                                                     └──────> pending, by row
```

Everything that a copy reads or a captured graph uses is allocated here once. Decode and finalize neither allocate
outside a graph's pool nor wait for the device.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob, PageCopy, ScheduledBatch
from photonlite.kernels.columns import PENDING_COLUMNS
from photonlite.kernels.reference.sampling import SamplingOutput
from photonlite.kernels.small_batch_gemm import Counters, counting_in
from photonlite.models.base import CropEncoder, Model, NextPositions, PromptDecoder, StepDecoder
from photonlite.runner.attention import DecodeAttention, PagedCache, plan_free_attention
from photonlite.runner.buffers import Buffers, HostViews, transfer
from photonlite.runner.crop_feed import CropFeed
from photonlite.runner.graphs.capture import Capturer, CudaCapturer, GraphReport
from photonlite.runner.graphs.decode import GraphKey, GraphOptions, GraphSet
from photonlite.runner.image_encoder import ImageEncoder
from photonlite.runner.input_embedding import InputEmbedding
from photonlite.runner.kv_format import KvFormat
from photonlite.runner.prefill.packed import PackedPrefill
from photonlite.runner.prefill.padded import PaddedPrefill
from photonlite.runner.prefill.rows import Prefill
from photonlite.runner.sampler import Scores, sample_from_hidden
from photonlite.runner.sampling_params import WITH_IDS, Variant
from photonlite.runner.slot import PAGES, PENDING_ROW, POSITION, WRITE_SLOT, Slot, SlotShape

Spread = Callable[[int], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """How much a model runner allocates."""

    shape: SlotShape
    pages: int  # of the KV cache, the scratch page included
    depth: int  # slots
    max_crops: int  # of an encode launch
    image_bytes: int = 0  # of images that an encode launch copies whole to cut them on the device; 0 to cut none


@dataclass(frozen=True, slots=True)
class FusedParts:
    """Faster versions of parts of a model; None for the model's own."""

    encoder: CropEncoder | None = None
    prompts: PromptDecoder | None = None  # runs prompts on one axis, in place of padded batches
    steps: StepDecoder | None = None  # runs decode steps


class TorchModelRunner:
    """Runs the work of steps on one device; see `runner.model_runner.ModelRunner`.

    When the constructor returns, all work that it queued is done. Other methods are called in inference mode.

    Args:
        model: In evaluation mode, on the device, with weights of type `dtype`.
        device: Where it is.
        dtype: Of its weights.
        limits: How much is allocated.
        fused: Faster versions of the model's parts.
        kv: How keys and values are stored; in the type of the weights unless given.
        spread: Given the multiplications of a launch's matrix products, makes a block in which operations run on as
            many threads as pay; None leaves the number unchanged.

    Attributes:
        cache: Keys and values of all sequences.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        dtype: torch.dtype,
        limits: RunnerLimits,
        *,
        fused: FusedParts | None = None,
        kv: KvFormat | None = None,
        spread: Spread | None = None,
    ) -> None:
        fused = fused or FusedParts()
        shape = limits.shape
        self.shape = shape
        self._model = model
        self._device = device
        self._graphs: GraphSet | None = None
        self._views: dict[int, tuple[Slot, HostViews]] = {}
        self._steps = fused.steps
        self._spread = spread
        self._counters: Counters = {}
        self._encoder = fused.encoder or model.vision
        self._images = ImageEncoder(self._encoder)
        with torch.inference_mode():
            self._inputs = InputEmbedding(model, device)
            kv = kv or KvFormat(dtype)
            self.cache = PagedCache(model.shape, limits.pages, shape.page_size, device, kv.dtype, kv.scales)
            self._pending = torch.zeros(shape.pending_rows, PENDING_COLUMNS, dtype=torch.int32, device=device)
            sizes = {"dim": model.shape.dim, "crop_size": model.crop_spec.crop_size}
            sizes |= {"max_crops": limits.max_crops, "image_bytes": limits.image_bytes}
            self._buffers = [Buffers.allocate(shape, device, dtype, **sizes) for _ in range(limits.depth)]
            parts = model, self._inputs, self._images, self.cache, shape
            self._prefill: Prefill = PackedPrefill(fused.prompts, *parts) if fused.prompts else PaddedPrefill(*parts)
            self._feed = CropFeed(model.crop_spec, device, cuts=limits.image_bytes > 0)
            if limits.image_bytes > 0:
                with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                    self._feed.rehearse(self._buffers[0])
        self._synchronize()

    @property
    def vocab_size(self) -> int:
        """Ids in the masks."""
        return self._model.shape.vocab_size

    @property
    def coordinates(self) -> Sequence[float]:
        """The coordinate of each bin."""
        return self._inputs.coordinates

    @property
    def sizes(self) -> Sequence[float]:
        """The width or height of each bin."""
        return self._inputs.sizes

    def capture(self, options: GraphOptions, capturer: Capturer | None = None) -> GraphReport:
        """Capture prompts and decode steps as graphs, before the first step: what runs here writes to the scratch page.

        The capturer is a `CudaCapturer` unless given.
        """

        def forward(slot: int, size: int) -> None:
            buffers = self._buffers[slot]
            buffers.hidden[:size].copy_(self._step(buffers.rows[:size]))

        def finalize(slot: int, size: int, variant: Variant, sampled: bool) -> None:
            self._finalize(self._buffers[slot], size, variant, sampled)

        self._graphs = GraphSet(options, depth=len(self._buffers), max_rows=self.shape.max_rows)
        with torch.inference_mode():
            capturer = capturer or CudaCapturer(self._device)
            report = self._prefill.capture(capturer)  # larger, so captured before the others
            report += self._graphs.capture(capturer, forward, finalize)
            self._pending.zero_()
        self._synchronize()
        return report

    def padded(self, rows: int) -> tuple[int, bool]:
        """Return the rows that a decode step of `rows` rows runs with, and whether a graph runs it."""
        if self._graphs is None or (size := self._graphs.size_for(rows)) is None:
            return rows, False
        return size, True

    def upload_rows(self, slot: Slot, count: int) -> None:
        """Copy the first `count` of `slot.rows` to the device."""
        transfer(self._buffers[slot.index].rows[:count], self._host(slot).rows[:count])

    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None:
        """Copy the first `count` of `slot.tokens` and other inputs of the plan's prompts to the device."""
        buffers, host = self._buffers[slot.index], self._host(slot)
        transfer(buffers.tokens[:count], host.tokens[:count])
        self._prefill.upload(buffers, host, slot, plan)

    def upload_crops(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Copy the groups' crops to the device, or the images that it cuts into crops."""
        self._feed.upload(self._buffers[slot.index], groups)

    def encode(self, slot: Slot, groups: Sequence[CropGroup]) -> None:
        """Encode the groups' crops in one batch; a job's last crop turns its features into embeddings."""
        crops = sum(group.count for group in groups)
        with self._spread_over(crops * self._model.shape.prefix_length), plan_free_attention():
            self._images.encode(self._feed.fill(self._buffers[slot.index], groups), groups)

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts; leave each row's last raw hidden state."""
        with self._spread_over(sum(row.count for row in plan.rows)):
            self._prefill.run(self._buffers[slot.index], slot, plan)

    def decode(self, slot: Slot, count: int) -> None:
        """Run one position of `count` rows; leave their raw hidden states."""
        if self._graphs is not None and self._graphs.replay(GraphKey(slot.index, count)):
            return
        buffers = self._buffers[slot.index]
        rows = buffers.rows[:count]
        if self._device.type == "cpu":
            # The reference gathers every page of the table: pass only those in use. On a card shapes stay fixed.
            rows = rows[:, : PAGES + int(slot.rows[:count, POSITION].max()) // self.shape.page_size + 1]
        with self._spread_over(count):
            buffers.hidden[:count].copy_(self._step(rows))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages, keys and values of all layers."""
        self.cache.copy(copies)

    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None:
        """Copy the first `count` of `slot.choices` to the device, and of masks and scored ids if needed."""
        buffers, host = self._buffers[slot.index], self._host(slot)
        transfer(buffers.choices[:count], host.choices[:count])
        if variant in WITH_IDS:
            transfer(buffers.masks[:count], host.masks[:count])
        if variant == "scored":
            transfer(buffers.scored[:count], host.scored[:count])

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        """Sample a token for each row with the heads of the variant; write it to pending table and results."""
        if self._graphs is None or not self._graphs.replay(GraphKey(slot.index, count, variant, sampled)):
            with self._spread_over(count):
                self._finalize(self._buffers[slot.index], count, variant, sampled)

    def download(self, slot: Slot, count: int, variant: Variant) -> None:
        """Copy the first `count` results to `slot.results`, and scores to `slot.scores`."""
        buffers, host = self._buffers[slot.index], self._host(slot)
        transfer(host.results[:count], buffers.results[:count])
        if variant == "scored":
            transfer(host.scores[:count], buffers.scores[:count])

    def forget(self, job: EncodeJob) -> None:
        """Let go of a job's crops, features and embeddings."""
        self._feed.forget(job)
        self._images.forget(job)

    def rehearse(self, positions: int, images: int) -> None:
        """Run the largest launches once, on the scratch page, so that the memory they take can be measured.

        Args:
            positions: That a launch prefills at most.
            images: Whose crops and features are kept meanwhile.
        """
        buffers, rows = self._buffers[0], self.shape.max_rows
        with torch.inference_mode(), plan_free_attention():
            features = self._encoder.encode(buffers.crops)
            crops = 1 + self._model.crop_spec.max_crops
            kept = (
                features.new_empty(images * crops, *features.shape[1:]),
                buffers.crops.new_empty(images * crops, *buffers.crops.shape[1:]),
            )
            self._prefill.rehearse(buffers, positions)
            buffers.hidden.copy_(self._step(buffers.rows))
            self._finalize(buffers, rows, "scored", sampled=True)
            del kept  # it had to be there while the others ran
        self._synchronize()

    def free_memory(self) -> None:
        """Return what PyTorch's allocator caches for later tensors; graphs and fixed buffers stay."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Free the device's memory; all work must be done."""
        self._graphs = None
        self.cache.close()
        # Graphs of images and prompts hold most memory, and callers may keep a reference to a closed model.
        del self._encoder, self._images, self._prefill, self._feed, self._steps
        self._buffers.clear()
        self._views.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _step(self, rows: Tensor) -> Tensor:
        """Map rows, int32 ``[B, 3 + P]``, to the raw hidden states of their next position, ``[B, dim]``."""
        x = self._inputs.pending(self._pending, rows[:, PENDING_ROW])  # [B, dim]
        if self._steps is not None:
            following = NextPositions(rows[:, POSITION], rows[:, WRITE_SLOT], rows[:, PAGES:])
            with counting_in(self._counters):
                return self._steps(x, following, self.cache)
        positions = rows[:, POSITION : POSITION + 1]
        return self._model.forward(x[:, None], positions, DecodeAttention(self.cache, rows))[:, 0]

    def _finalize(self, buffers: Buffers, count: int, variant: Variant, sampled: bool) -> None:
        hidden, choices, masks = buffers.hidden[:count], buffers.choices[:count], buffers.masks[:count]
        output = SamplingOutput(buffers.results[:count], self._pending, buffers.rows[:count, PENDING_ROW])
        scores = Scores(buffers.scored[:count], buffers.scores[:count]) if variant == "scored" else None
        with counting_in(self._counters):
            sample_from_hidden(self._model, hidden, choices, masks, output, scores, variant=variant, sampled=sampled)

    def _spread_over(self, positions: int) -> contextlib.AbstractContextManager[object]:
        if self._spread is None:
            return contextlib.nullcontext()
        return self._spread(positions * self._model.shape.dim**2)

    def _host(self, slot: Slot) -> HostViews:
        known = self._views.get(slot.index)
        if known is None or known[0] is not slot:
            known = self._views[slot.index] = slot, HostViews.of(slot)
        return known[1]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

"""The model runner in production: a model, a paged KV cache and fixed buffers on one device.

```
slot (host)          Buffers (device, one set a slot)
rows, tokens ──────> rows, tokens ─┐
crops, images ───> crops ─ encode ── features ── images ─┐   kept by job until forgotten
                                   ├─ prefill <──────────────┘
pending ── embed ──────────────────┴─ decode ──> hidden
choices, masks ────> choices, masks ──────────── finalize ──> results ──> results (host)
scored, seen ──────> scored, seen                        ├──> scores ───> scores           only where rows want them
                                                     └──────> pending, by row
```

Prompts behind images on the encoder's stream have buffers of their own, and end in the pending table: `hidden` is not
read. Everything that a copy reads or a captured graph uses is allocated here once. Decode and finalize neither allocate
outside a graph's pool nor wait for the device.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from photonlite.batch import CropGroup, EncodeJob, PageCopy, ScheduledBatch, Transfer
from photonlite.device.cuda import PRIORITY
from photonlite.images.crops import CropSpec
from photonlite.kernels.autotune import plan_free_attention
from photonlite.kernels.columns import PENDING_COLUMNS
from photonlite.kernels.triton_utils import Counters, counting_in, has_triton
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterWeights
from photonlite.models.base import (
    CropEncoder,
    Model,
    PatchEncoder,
    PromptDecoder,
    StepDecoder,
    size_heads,
)
from photonlite.runner.adapted import AdaptedLaunches
from photonlite.runner.buffers import (
    Buffers,
    CropBuffers,
    KvFormat,
    PagedCache,
    crop_buffers,
    transfer,
    transfer_back,
)
from photonlite.runner.context import ForwardContext
from photonlite.runner.decode import Decode
from photonlite.runner.graphs import (
    PLACE_VARIANTS,
    VARIANTS,
    WORD_VARIANTS,
    Capturer,
    CudaCapturer,
    DecodeGraphs,
    GraphOptions,
    GraphReport,
)
from photonlite.runner.image_graphs import GraphedEncoder
from photonlite.runner.images import ImageEncoder, Images
from photonlite.runner.patches import PatchImages
from photonlite.runner.prefill import Prefill, PromptRow, make_rows
from photonlite.runner.sampling_params import WITH_IDS, WITH_SCORES, Variant
from photonlite.runner.slots import (
    ENCODER_SLOTS,
    PAGES,
    PENDING_ROW,
    EncoderSlot,
    Slot,
    SlotShape,
)
from photonlite.runner.stored_images import ImageKeeper, StoredImages
from photonlite.runner.swap import HostPages
from photonlite.runner.tokens import InputEmbedding, sample_from_hidden
from photonlite.scheduler.limits import MOST_BESIDE

Spread = Callable[[int], contextlib.AbstractContextManager[object]]
"""Given the multiplications of a launch's matrix products, makes a block that runs on as many threads as pay."""


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    shape: SlotShape
    pages: int  # of the KV cache, the scratch page included
    depth: int  # slots
    max_crops: int  # of an encode launch
    image_bytes: int = 0  # of images that an encode launch copies whole to cut them on the device; 0 to cut none
    encodes_beside: bool = False  # encode launches have slots and a stream of their own
    prompts_beside: bool = False  # there prompts about images run as well, and some images on the compute stream


@dataclass(frozen=True, slots=True)
class FusedParts:
    """Faster versions of parts of a model; None for the model's own."""

    encoder: CropEncoder | PatchEncoder | None = None
    prompts: PromptDecoder | None = None
    steps: StepDecoder | None = None


class TorchModelRunner:
    """Runs the work of steps on one device; see `runner.step_executor.ModelRunner` for what its methods do.

    The model is in evaluation mode on the device, with weights of `dtype`, the type of keys and values too unless `kv`
    is given; `keeper` keeps what is computed for images. The constructor waits for the work that it queues. Other
    methods are called in inference mode.
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
        keeper: ImageKeeper | None = None,
    ) -> None:
        fused = fused or FusedParts()
        self.shape = shape = limits.shape
        self.vocab_size = model.shape.vocab_size
        self._model = model
        self._device = device
        self._graphs: DecodeGraphs | None = None
        self._part_graphs: DecodeGraphs | None = None  # the same in decoding's part of the card
        self._fused = fused
        self._spread = spread
        self.adapted: AdaptedLaunches | None = None  # from the first adapter on, see `use_adapters`
        self._counters: Counters = {}
        self._encoder_counters: Counters = {}
        self._host_pages: HostPages | None = None
        with torch.inference_mode():
            inputs = InputEmbedding(model, device)
            self.coordinates: Sequence[float] = inputs.coordinates
            self.sizes: Sequence[float] = inputs.sizes
            kv = kv or KvFormat(dtype)
            self.cache = PagedCache(model.shape, limits.pages, shape.page_size, device, kv.dtype, kv.scales)
            self._pending = torch.zeros(shape.pending_rows, PENDING_COLUMNS, dtype=torch.int32, device=device)
            self._encoder = fused.encoder or model.vision
            images = _make_images(model, self._encoder, limits)
            self._images = StoredImages(images, device, keeper)
            self._buffers = [Buffers(shape, device, dtype, dim=model.shape.dim) for _ in range(limits.depth)]
            counts = (
                0 if limits.encodes_beside and not limits.prompts_beside else limits.depth,
                ENCODER_SLOTS if limits.encodes_beside else 0,
            )
            # Of slots on the compute stream, and on the encoder's.
            self._crops, self._crops_beside = (
                crop_buffers(count, self._images.input_shape, device, limits.image_bytes) for count in counts
            )
            self._context = ForwardContext(model, inputs, self._images, self.cache, shape, self._pending)
            self._step = Decode(fused.steps, self._context)
            self._prefill = self._make_prefill(fused.prompts)
            self._prefills = [self._prefill] * limits.depth  # that run the prompts of each slot
            # Prompts on the encoder's stream run while others do: everything that these use is there twice.
            self._buffers_beside: list[Buffers] = []
            self._prefill_beside: Prefill | None = None
            if limits.prompts_beside:
                self._buffers_beside = [
                    Buffers(shape, device, dtype, dim=model.shape.dim) for _ in range(ENCODER_SLOTS)
                ]
                self._prefill_beside = self._make_prefill(fused.prompts)
            if limits.image_bytes > 0 and isinstance(images, ImageEncoder):
                with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                    images.rehearse([*self._crops, *self._crops_beside][0])
        self._synchronize()

    def capture(
        self,
        options: GraphOptions,
        capturer: Capturer | None = None,
        part: Capturer | None = None,
        encoder_part: Capturer | None = None,
    ) -> GraphReport:
        """Capture prompts and decode steps, before the first step: what runs here writes to the scratch page.

        `part` captures decode steps once more, in decoding's part of the card, `encoder_part` prompts in the encoder's.
        """

        def forward(slot: int, size: int) -> None:
            self._decode(self._buffers[slot], size)

        def finalize(slot: int, size: int, variant: Variant, sampled: bool) -> None:
            self._finalize(self._buffers[slot], size, variant, sampled)

        self._graphs = DecodeGraphs(options, depth=len(self._buffers), max_rows=self.shape.max_rows)
        with torch.inference_mode():
            capturer = capturer or CudaCapturer(self._device, PRIORITY)
            with counting_in(self._counters):
                report = self._prefill.capture(capturer)  # larger, so captured before the others
            variants = WORD_VARIANTS
            if self._model.numbers is not None:
                variants = VARIANTS if size_heads(self._model.numbers) is not None else PLACE_VARIANTS
            report += self._graphs.capture(capturer, forward, finalize, variants)
            if part is not None:
                # Both sets share arrival counters: they are replayed on one stream.
                graphs = DecodeGraphs(options, depth=len(self._buffers), max_rows=self.shape.max_rows)
                report += graphs.capture(part, forward, finalize, variants, " for decoding beside images")
                self._part_graphs = graphs
            if encoder_part is not None and self._prefill_beside is not None:
                with counting_in(self._encoder_counters):
                    report += self._prefill_beside.capture(encoder_part, MOST_BESIDE)
            self._pending.zero_()
        self._synchronize()
        return report

    def use_adapters(self, bank: AdapterBank) -> None:
        """Take launches some of whose rows have adapters from now on."""
        self.adapted = AdaptedLaunches(bank, self._context, self._fused.steps, self._fused.prompts, self._buffers[0])

    def reserve_adapter(self, weights: AdapterWeights) -> GraphReport | None:
        """Allocate what an adapter needs in any slot, and capture launches with it; see `capture_adapters`."""
        if self.adapted is None:
            raise AssertionError("adapters are reserved before the engine uses any")
        self.adapted.bank.reserve(weights)
        return self.capture_adapters()

    def capture_adapters(self, capturer: Capturer | None = None) -> GraphReport | None:
        """Capture launches with adapters, from any thread; None where steps run without graphs, or kernels.

        It is done anew where the bank has got places for further terms.
        """
        if self.adapted is None or self._graphs is None:
            return None
        if capturer is None:
            half = self._buffers[0].hidden.dtype in (torch.bfloat16, torch.float16)
            if not half or not has_triton(self._device):
                return None
            capturer = CudaCapturer(self._device, PRIORITY)
        return self.adapted.capture(capturer, self._graphs.sizes)

    def padded(self, rows: int, *, adapted: bool = False) -> tuple[int, bool]:
        if self._graphs is None or (size := self._graphs.size_for(rows)) is None:
            return rows, False
        return size, not adapted or (self.adapted is not None and self.adapted.has_step(size))

    @property
    def part_sizes(self) -> Sequence[int]:
        return self._part_graphs.sizes if self._part_graphs is not None else ()

    def upload_rows(self, slot: Slot, count: int) -> None:
        transfer(self._buffers_of(slot).rows[:count], slot.rows[:count])

    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None:
        buffers, rows = self._buffers_of(slot), make_rows(plan.rows)
        transfer(buffers.tokens[:count], slot.tokens[:count])
        if not slot.beside:
            # Chosen once: `packed` is filled for the graph that runs it, and graphs may be captured meanwhile.
            adapted = self._adapted_of(slot.adapted)
            self._prefills[slot.index] = (adapted and adapted.find_prompts()) or self._prefill
        prefill = self._prefill_of(slot)
        prefill.fill(slot, rows)
        prefill.upload(buffers, slot, rows)

    def upload_crops(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None:
        self._images.upload(self._crops_of(slot), groups)

    def encode(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None:
        bank = self._bank_of(any(group.adapter_slot for group in groups))
        counting = counting_in(self._counters_of(slot))
        if isinstance(self._encoder, GraphedEncoder):
            self._encoder.in_part = slot.in_part
        with self._spread_over(self._images.work(groups)), plan_free_attention(self._device), counting:
            self._images.encode(self._crops_of(slot), groups, bank)

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        table = self._buffers_of(slot).rows[:, PAGES:]
        self._images.restore_pages(self.cache, table, plan.rows)
        self._run_prompts(slot, rows := make_rows(plan.rows))
        if slot.beside:
            self._await_decoding(slot, rows)
        self._images.keep_pages(self.cache, table, plan.rows)

    def decode(self, slot: Slot, count: int) -> None:
        adapted = self._adapted_of(slot.adapted)
        if adapted is None and self._replay(slot, count):
            return
        with self._spread_over(count):
            if adapted is None:
                self._decode(self._buffers[slot.index], count)
            else:
                adapted.decode(self._buffers[slot.index], slot, count)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        self.cache.copy(copies)

    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None:
        buffers = self._buffers[slot.index]
        transfer(buffers.choices[:count], slot.choices[:count])
        if variant in WITH_IDS:
            transfer(buffers.masks[:count], slot.masks[:count])
        if variant in WITH_SCORES:
            transfer(buffers.scored[:count], slot.scored[:count])
        if variant == "penalized":
            transfer(buffers.seen[:count], slot.seen[:count])

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        if not self._replay(slot, count, variant, sampled):
            with self._spread_over(count):
                self._finalize(self._buffers[slot.index], count, variant, sampled)

    def download(self, slot: Slot, count: int, variant: Variant) -> None:
        buffers = self._buffers[slot.index]
        transfer_back(slot.results[:count], buffers.results[:count])
        if variant in WITH_SCORES:
            transfer_back(slot.scores[:count], buffers.scores[:count])

    def reserve_swap(self, places: int) -> None:
        """Allocate host memory for the pages of sequences that give way."""
        self._host_pages = HostPages(self.cache, self._pending, places)

    def swap(self, transfer: Transfer) -> None:
        if self._host_pages is None:
            raise AssertionError("pages are swapped, but no host memory was reserved")
        self._host_pages.move(transfer)

    def forget(self, job: EncodeJob) -> None:
        self._images.forget(job)

    def rehearse(self, positions: int, images: int) -> None:
        """Run the largest launches on the scratch page beside features of so many images, to measure memory."""
        buffers, rows = self._buffers[0], self.shape.max_rows
        with torch.inference_mode(), plan_free_attention(self._device):
            kept = []
            if self._crops_beside:
                kept += self._images.encode_most(self._crops_beside[0], images)
            if self._crops_beside and self._device.type == "cuda":
                # What the encoder needs for a moment is in use while the others run.
                peak, held = torch.cuda.max_memory_allocated(self._device), torch.cuda.memory_allocated(self._device)
                kept.append(torch.empty(peak - held, dtype=torch.uint8, device=self._device))
            if self._crops:
                # Features are of so many images on both streams together, but freed memory stays with its stream.
                kept += self._images.encode_most(self._crops[0], images)
            with counting_in(self._counters):
                self._prefill.rehearse(positions)
            self._decode(buffers, rows)
            self._finalize(buffers, rows, "penalized", sampled=True)
            del kept  # it had to be there while the others ran
        self._synchronize()

    def free_memory(self) -> None:
        if self._device.type == "cuda":  # graphs and fixed buffers stay
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Free the device's memory; all work must be done."""
        self._graphs = self._part_graphs = self._host_pages = self.adapted = None
        self.cache.close()
        # Graphs of images and prompts hold most memory, and callers may keep a reference to a closed model.
        del self._images, self._prefill, self._prefills, self._prefill_beside, self._fused, self._encoder
        del self._context, self._step
        self._buffers.clear()
        self._buffers_beside.clear()
        self._crops.clear()
        self._crops_beside.clear()
        self.free_memory()

    def _buffers_of(self, slot: Slot) -> Buffers:
        return (self._buffers_beside if slot.beside else self._buffers)[slot.index]

    def _crops_of(self, slot: EncoderSlot) -> CropBuffers:
        return (self._crops_beside if slot.beside else self._crops)[slot.index]

    def _counters_of(self, slot: EncoderSlot) -> Counters:
        """Return the arrival counters of a stream: kernels of the other one may run at the same time."""
        return self._encoder_counters if slot.beside else self._counters

    def _prefill_of(self, slot: Slot) -> Prefill:
        prefill = self._prefill_beside if slot.beside else self._prefills[slot.index]
        assert prefill is not None, "prompts are launched beside others by a runner that was not made for it"
        return prefill

    def _await_decoding(self, slot: Slot, rows: Sequence[PromptRow]) -> None:
        """Put the token behind each row, a word, into the pending table, where the next decode step finds it."""
        buffers, count, filled = self._buffers_of(slot), len(rows), sum(row.tokens for row in rows)
        places = buffers.rows[:count, PENDING_ROW].long()
        self._pending.index_copy_(0, places, buffers.tokens[filled : filled + count])

    def _make_prefill(self, decoder: PromptDecoder | None) -> Prefill:
        return Prefill(decoder, self._context)

    def _adapted_of(self, adapted: bool) -> AdaptedLaunches | None:
        """Return what runs a launch some of whose rows have adapters; None for one without any."""
        if adapted and self.adapted is None:
            raise AssertionError("a launch has rows with adapters, and none was ever loaded")
        return self.adapted if adapted else None

    def _bank_of(self, adapted: bool) -> AdapterBank | None:
        found = self._adapted_of(adapted)
        return None if found is None else found.bank

    def _decode(self, buffers: Buffers, count: int) -> None:
        with counting_in(self._counters):
            buffers.hidden[:count].copy_(self._step(buffers.rows[:count]))

    def _run_prompts(self, slot: Slot, rows: Sequence[PromptRow]) -> None:
        prefill = self._prefill_of(slot)
        bank = self._bank_of(slot.adapted) if prefill is self._prefill else None
        with self._spread_over(sum(row.count for row in rows)), counting_in(self._counters_of(slot)):
            prefill.run(self._buffers_of(slot), slot, rows, bank)

    def _replay(self, slot: Slot, count: int, *finalize: object) -> bool:
        """Replay a graph: that of the part if the slot asks for it, else that of the whole card; False without one."""
        sets = (self._part_graphs, self._graphs) if slot.in_part else (self._graphs,)
        return any(graphs is not None and graphs.replay(slot.index, count, *finalize) for graphs in sets)

    def _finalize(self, buffers: Buffers, count: int, variant: Variant, sampled: bool) -> None:
        hidden, choices, masks = buffers.hidden[:count], buffers.choices[:count], buffers.masks[:count]
        output = (buffers.results[:count], self._pending, buffers.rows[:count, PENDING_ROW])
        scores = (buffers.scored[:count], buffers.scores[:count]) if variant in WITH_SCORES else None
        seen = buffers.seen[:count] if variant == "penalized" else None
        extras = scores, seen
        with counting_in(self._counters):
            sample_from_hidden(self._model, hidden, choices, masks, *output, *extras, variant=variant, sampled=sampled)

    def _spread_over(self, positions: int) -> contextlib.AbstractContextManager[object]:
        if self._spread is None:
            return contextlib.nullcontext()
        return self._spread(positions * self._model.shape.dim**2)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _make_images(model: Model, encoder: CropEncoder | PatchEncoder, limits: RunnerLimits) -> Images:
    spec = model.crop_spec
    if isinstance(spec, CropSpec):
        crops = cast(CropEncoder, encoder)
        return ImageEncoder(crops, spec, max_crops=limits.max_crops)
    patches = cast(PatchEncoder, encoder)
    return PatchImages(patches, spec, max_units=limits.max_crops, longest=model.shape.max_context)

"""Build an engine: all device memory that it will use is allocated here, or the configuration is refused."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch

from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import EngineConfig
from photonlite.device.cpu import compute_threads
from photonlite.device.cuda import PRIORITY
from photonlite.device.names import open_device
from photonlite.device.parts import CardParts, card_parts
from photonlite.engine.core import EngineCore
from photonlite.errors import MissingDependencyError, SettingsError
from photonlite.grammar.automata.tables import words
from photonlite.images.crops import CropSpec
from photonlite.images.packing import MOST_BYTES
from photonlite.kernels.fp8 import require_fp8_linears
from photonlite.models.base import CropEncoder, Model, ModelShape, PatchEncoder, PromptDecoder, UnfusedModel
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.runner.buffers import KvFormat, kv_format
from photonlite.runner.graphs import VARIANTS, CudaCapturer, GraphOptions, GraphReport, prefill_sizes, sizes_within
from photonlite.runner.image_graphs import GraphedCrops, GraphedPatches
from photonlite.runner.memory import (
    GRAPH_BYTES,
    MemoryPlan,
    bytes_of_page,
    cpu_cache_bytes,
    device_memory,
    estimate_graph_bytes,
    longest_pages,
    measure_activations,
    plan_memory,
)
from photonlite.runner.ranks.leader import LeaderRunner, TeamExecutor, TeamModel
from photonlite.runner.ranks.team import Team
from photonlite.runner.slots import SlotShape
from photonlite.runner.step_executor import StepExecutor
from photonlite.runner.stored_images import ImageKeeper
from photonlite.runner.swap import staging_pages, swap_places
from photonlite.runner.torch_model_runner import FusedParts, RunnerLimits, TorchModelRunner
from photonlite.scheduler.limits import MAX_JOBS, REALTIME_JOBS, Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.tuning.split import Split, split_by_settings

_logger = logging.getLogger("photonlite")

CUDA_BATCH, CPU_BATCH = 64, 8

_STAGED_POSITIONS = 4096
"""Most positions whose stored keys and values are on a card at a time, where images stand inside prompts."""


class Capturers(NamedTuple):
    """Capturers of CUDA graphs: for the whole card, and for the parts of one that is divided."""

    whole: CudaCapturer
    decode: CudaCapturer | None = None
    encode: CudaCapturer | None = None


class Parts(NamedTuple):
    core: EngineCore
    memory: MemoryPlan  # of the KV cache
    graphs: GraphReport | None  # what capturing took; None without graphs
    model_runner: TorchModelRunner
    team: Team | None = None  # the other ranks of tensor parallelism


def build(
    model: Model,
    where: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
    keeper: ImageKeeper | None = None,
    split: Split | None = None,
) -> Parts:
    """Build an engine for a model in evaluation mode on the device; `keeper` keeps what is computed for images.

    `split` is a tuning file's division of the card; None for that of the settings.

    Raises a CapacityError if not even one longest request fits, a SettingsError for what the device cannot do, an
    EngineError where another rank cannot start.
    """
    count = model.team.count if isinstance(model, TeamModel) else 1
    if config.tensor_parallel != count:
        raise SettingsError(
            f"engine setting 'tensor_parallel' is {config.tensor_parallel}, but this model was loaded for {count} ranks"
        )
    # Triton launches on the current card, and a capture would open a context on it.
    with torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext():
        if not isinstance(model, TeamModel):
            return _build(model if config.fused else UnfusedModel(model), where, dtype, config, keeper, split)
        try:
            model.team.start()
            model.team.connect()
            return _build(model if config.fused else model.unfused(), where, dtype, config, keeper, split)
        except BaseException:
            model.team.stop()
            raise


def _build(
    model: Model,
    where: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
    keeper: ImageKeeper | None,
    split: Split | None,
) -> Parts:
    reserves = config.realtime_part
    split = split or split_by_settings(where, config) or Split(0, None, "")
    if split.source and not split.encode_sms:  # a tuned schedule without a division
        config = dataclasses.replace(config, encoding="turns", tuning=None, realtime_part=False)
    slots = _slot_shape(model, config, config.max_batch or (CUDA_BATCH if where.type == "cuda" else CPU_BATCH))
    kv = kv_format(config.kv_dtype, model, where, dtype)
    divided = _divide(where, split.encode_sms)
    encoder, capturers, graphs = _crop_encoder(model, where, dtype, config, divided)
    prompts = model.prompt_decoder(fp8=config.fp8_linears)
    team = model.team if isinstance(model, TeamModel) else None
    threads = config.cpu_threads or (None if team is None else team.cpu_threads)
    spread = compute_threads(threads) if where.type == "cpu" else None
    fused = FusedParts(encoder, prompts, model.step_decoder())
    encodes_beside = config.encoding == "beside"
    divides = divided is not None or (where.type == "cpu" and split.encode_sms > 0)
    if reserves and not divides:
        _logger.warning("Real-time requests have no part of the card: it is not divided")
    tuning = split.source if divides or not encodes_beside else ""
    if tuning:
        _logger.info("Encoding and decoding: %s, by %s", "in parts" if divides else "by turns", tuning)
    image_bytes = MOST_BYTES if where.type == "cuda" and isinstance(model.crop_spec, CropSpec) else 0

    def make_runner(pages: int) -> TorchModelRunner:
        limits = RunnerLimits(slots, pages, config.depth, config.max_crops, image_bytes, encodes_beside, divides)
        make = TorchModelRunner if team is None else partial(LeaderRunner, team, kv_dtype=config.kv_dtype)
        return make(model, where, dtype, limits, fused=fused, kv=kv, spread=spread, keeper=keeper)

    sets = 1 if divided is None else 2
    graph_bytes = sets * _graph_bytes(model.shape, prompts, config, slots) if config.cuda_graphs else 0
    page_bytes = bytes_of_page(model.shape, kv.dtype, config.page_size)
    # Before anything large is allocated: what does not fit is refused at once.
    places = swap_places(config.swap_bytes, page_bytes, longest_pages(model.shape, config.page_size))
    staged = restored_pages(model.shape, config.page_size) if keeper is not None and team is None else 0
    staging_bytes = page_bytes * (staged + (staging_pages(page_bytes) if places else 0))
    memory = _plan(model, where, kv, config, slots, (graph_bytes, staging_bytes), make_runner, team)
    model_runner = make_runner(memory.pages)
    if places:
        model_runner.reserve_swap(places)
        _logger.info("Swap: %d pages, %.2f GiB of host memory", places, places * page_bytes / 2**30)
    stored = str(kv.dtype).removeprefix("torch.")
    _logger.info("KV cache: %d pages, %.2f GiB, in %s", memory.pages, memory.kv_bytes / 2**30, stored)
    if capturers is not None and graphs is not None:
        graphs += model_runner.capture(GraphOptions(config.graph_sizes, config.pad_to_graph), *capturers)
        _logger.info("CUDA graphs: %d in %.1f s, %.0f MiB", graphs.graphs, graphs.seconds, graphs.bytes / 2**20)
    device = open_device(where, None if divided is None else divided.encode.stream)
    tracer = Tracer(enabled=config.trace)
    cache = CacheManager(PagePool(memory.pages, config.page_size), prefix_caching=config.prefix_caching)
    limits = _limits(model.shape, config, slots, split if divides else None, swap_pages=places)
    runner = (
        StepExecutor(device, model_runner, config.depth, tracer, encodes_beside=encodes_beside, prompts_beside=divides)
        if team is None
        else TeamExecutor(team, device, model_runner, config.depth, tracer)
    )
    metrics = EngineMetrics(plain=plain_parts(model, where), tensor_parallel=config.tensor_parallel, tuning=tuning)
    core = EngineCore(Scheduler(cache, limits), runner, config.depth, metrics, tracer)
    return Parts(core, dataclasses.replace(memory, tuning=tuning), graphs, model_runner, team)


def _limits(
    shape: ModelShape, config: EngineConfig, slots: SlotShape, split: Split | None, *, swap_pages: int
) -> Limits:
    return Limits(
        max_batch=slots.max_rows,
        pending_rows=slots.pending_rows - 1,
        max_prefill_tokens=config.max_prefill_tokens,
        max_crops=config.max_crops,
        max_image_bytes=MOST_BYTES,
        staged_pages=restored_pages(shape, config.page_size),
        launch_budget_s=config.launch_budget_s,
        max_pause_s=config.max_pause_s,
        max_positions=shape.max_context,
        vocab_size=shape.vocab_size,
        adapter_slots=config.adapter_slots,
        forced_runs=config.forced_runs,
        mixes=config.batching == "mixed",
        mixed_tokens=config.mixed_tokens,
        encodes_beside=config.encoding == "beside",
        parts=None if split is None else split.parts,
        realtime_part=config.realtime_part and split is not None,
        router=config.router,
        router_budget=config.router_budget,
        swap_pages=swap_pages,
    )


def plain_parts(model: Model, where: torch.device) -> dict[str, str]:
    """Return and log what runs in operations of PyTorch on a card, with the reason; on the CPU everything does."""
    parts = dict(model.plain_parts()) if where.type == "cuda" else {}
    for part, reason in parts.items():
        _logger.info("Not fused: %s, because %s", part, reason)
    return parts


def _divide(where: torch.device, encode_sms: int) -> CardParts | None:
    """Divide a card between encoding and decoding; None where that is not asked for, or not possible."""
    if not encode_sms or where.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(where).multi_processor_count
    if encode_sms >= total:
        raise SettingsError(f"engine setting 'encode_sms' is {encode_sms}: it must be below {total}, all SMs there are")
    try:
        parts = card_parts(where, encode_sms)
    except (MissingDependencyError, SettingsError) as error:
        _logger.warning("Encoding and decoding share the whole card: %s", error)
        return None
    _logger.info("Parts of the card: %d SMs for decoding, %d for encoding", parts.decode.sms, parts.encode.sms)
    return parts


def _crop_encoder(
    model: Model, where: torch.device, dtype: torch.dtype, config: EngineConfig, divided: CardParts | None
) -> tuple[CropEncoder | PatchEncoder, Capturers | None, GraphReport | None]:
    """Make the image encoder before the memory is planned: what its graphs take is in use by then."""
    if config.fp8_linears:
        require_fp8_linears(where, dtype)
    encoder = model.crop_encoder(fp8=config.fp8_linears)
    if where.type != "cuda" or not config.cuda_graphs:
        return encoder, None, None
    # Makes all graphs from one memory pool: they run one after the other.
    capturer = CudaCapturer(where, PRIORITY if config.encoding == "beside" else 0)
    capturers = Capturers(capturer)
    if config.encoding == "beside" and divided is None:
        capturer = CudaCapturer(where)  # all images run beside the others
    if divided is not None:
        capturers = Capturers(capturers.whole, *(CudaCapturer(where, part=part) for part in divided))
    spec = model.crop_spec
    graphed: GraphedCrops | GraphedPatches
    if isinstance(spec, CropSpec):
        crops = cast(CropEncoder, encoder)
        graphed = GraphedCrops(crops, crop_size=spec.crop_size, max_crops=config.max_crops, device=where)
    else:
        graphed = GraphedPatches(cast(PatchEncoder, encoder), spec, where)
    report = graphed.capture(capturer)
    if divided is not None and capturers.encode is not None:
        in_part = graphed.capture(capturers.encode, in_part=True)
        _require_graphs_in_part(divided.encode.sms, report.graphs, in_part.graphs)
        report += in_part
    return graphed, capturers, report


def _require_graphs_in_part(sms: int, whole: int, in_part: int) -> None:
    """Refuse a part of the card in which none of the encoder's graphs could be made, though the whole card has some.

    On 12 SMs of an H200 8-bit products failed without graphs as well, and so did every request about an image.
    """
    if whole and not in_part:
        raise SettingsError(
            f"images cannot be encoded in a part of {sms} SMs, as the warnings above say: engine setting 'encode_sms' "
            "must be larger, or 0 for turns on the whole card"
        )


def _slot_shape(model: Model, config: EngineConfig, max_batch: int) -> SlotShape:
    shape, mixed = model.shape, config.batching == "mixed"
    return SlotShape(
        max_rows=max_batch,
        # A prompt that cannot be cut may be as long as the context, beside all other rows.
        max_tokens=max(config.max_prefill_tokens, shape.max_context + max_batch * mixed),
        page_size=config.page_size,
        max_pages=-(-shape.max_context // config.page_size),
        mask_words=words(shape.vocab_size),
        # A zombie keeps its row for one step more, while a new sequence has got its place in the batch; and one row
        # takes what unused rows of a padded batch write.
        pending_rows=2 * max_batch + 1,
        axes=shape.axes,
        mixed=mixed,
    )


def _plan(
    model: Model,
    where: torch.device,
    kv: KvFormat,
    config: EngineConfig,
    slots: SlotShape,
    reserved: tuple[int, int],  # bytes of graphs and of staging
    make_runner: Callable[[int], TorchModelRunner],
    team: Team | None,
) -> MemoryPlan:
    shape, page_size, rows = model.shape, config.page_size, slots.max_rows
    held = sum(parameter.nbytes for parameter in cast(torch.nn.Module, model).parameters())
    plan = partial(plan_memory, shape, kv.dtype, page_size=page_size, max_rows=rows, weight_bytes=held)
    if config.kv_cache_bytes is not None or where.type != "cuda":
        size = config.kv_cache_bytes or cpu_cache_bytes(shape, kv.dtype, page_size=page_size, max_rows=rows)
        return plan(kv_cache_bytes=size)
    weights = torch.cuda.memory_allocated(where)
    activations = measure_activations(make_runner, where, config.max_prefill_tokens, MAX_JOBS + REALTIME_JOBS)
    graphs, staging = reserved
    memory = device_memory(where, config.gpu_memory_fraction, weights)
    cards = [(memory, activations)] if team is None else team.gather_memory(memory, activations)
    plans = [plan(memory=of, activation_bytes=size, graph_bytes=graphs, staging_bytes=staging) for of, size in cards]
    return min(plans, key=lambda one: one.pages)


def restored_pages(shape: ModelShape, page_size: int) -> int:
    """Return how many stored pages are on the device before prompts have read them, at most.

    Every image that is under way may have those of a leading image; those of images inside prompts share some.
    """
    if shape.prefix_length is not None:
        return (MAX_JOBS + REALTIME_JOBS) * -(-shape.prefix_length // page_size)
    return 0 if shape.prefix_lm else -(-min(shape.max_context, _STAGED_POSITIONS) // page_size)


def _graph_bytes(shape: ModelShape, prompts: PromptDecoder | None, config: EngineConfig, slots: SlotShape) -> int:
    """Estimate the bytes of a set of graphs of prompts and decode steps."""
    sizes = sizes_within(config.graph_sizes, slots.max_rows)
    steps = estimate_graph_bytes(len(sizes), config.depth, len(VARIANTS))
    if prompts is None:
        return steps
    lengths = prefill_sizes(shape.prefix_length, slots.max_tokens)
    return steps + GRAPH_BYTES * len(lengths) + prompts.activation_bytes(lengths[-1])

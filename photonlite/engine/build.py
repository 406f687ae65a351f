"""How an engine is put together: memory first, then the cache, the runner's body, its graphs, and the core.

Whatever the engine will ever use on the device is allocated here, or the configuration is refused with the numbers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import EngineConfig
from photonlite.device.base import Device
from photonlite.device.bodies import open_device
from photonlite.engine.core import EngineCore
from photonlite.grammar.mask import words
from photonlite.models.base import Model
from photonlite.observe.trace import Tracer
from photonlite.runner.graphs import VARIANTS, GraphOptions, GraphReport
from photonlite.runner.memory import (
    MemoryPlan,
    cpu_cache_bytes,
    device_memory,
    estimate_graph_bytes,
    measure_activations,
    plan_memory,
)
from photonlite.runner.runner import StreamRunner
from photonlite.runner.slot import SlotShape
from photonlite.runner.torch_body import TorchBody
from photonlite.scheduler.policy import MAX_JOBS, Limits
from photonlite.scheduler.scheduler import Scheduler

_logger = logging.getLogger("photonlite")

_CUDA_BATCH, _CPU_BATCH = 64, 8


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine's parts.

    Attributes:
        core: Ready to tick.
        device: The streams it runs on.
        memory: What the KV cache got.
        graphs: What capturing took; None without graphs.
    """

    core: EngineCore
    device: Device
    memory: MemoryPlan
    graphs: GraphReport | None


def build(model: Model, where: torch.device, dtype: torch.dtype, config: EngineConfig) -> Parts:
    """Put an engine together.

    Args:
        model: In evaluation mode, on the device.
        where: The device.
        dtype: Of the weights.
        config: How to run.

    Raises:
        CapacityError: Not even one longest request fits the memory.
    """
    max_batch = config.max_batch or (_CUDA_BATCH if where.type == "cuda" else _CPU_BATCH)
    slots = _slot_shape(model, config, max_batch)

    def make_body(pages: int) -> TorchBody:
        return TorchBody(model, where, dtype, slots, pages, config.depth, max_crops=config.max_crops)

    memory = _plan(model, where, dtype, config, slots, make_body)
    body = make_body(memory.pages)
    graphed = where.type == "cuda" and config.cuda_graphs
    graphs = body.capture(GraphOptions(config.graph_sizes, config.pad_to_graph, config.compile)) if graphed else None

    _report(memory, graphs)
    device = open_device(where)
    tracer = Tracer(enabled=config.trace)
    cache = CacheManager(
        PagePool(memory.pages, config.page_size), model.shape.prefix_length, prefix_caching=config.prefix_caching
    )
    limits = Limits(
        max_batch=max_batch,
        pending_rows=slots.pending_rows - 1,
        max_prefill_tokens=config.max_prefill_tokens,
        max_crops=config.max_crops,
        launch_budget_s=config.launch_budget_s,
        max_positions=model.shape.max_context,
    )
    runner = StreamRunner(device, body, config.depth, tracer)
    return Parts(EngineCore(Scheduler(cache, limits), runner, config.depth, tracer=tracer), device, memory, graphs)


def _report(memory: MemoryPlan, graphs: GraphReport | None) -> None:
    """Tell whoever listens what the engine has taken."""
    _logger.info("KV cache: %d pages, %.2f GiB", memory.pages, memory.kv_bytes / 2**30)
    if graphs is not None:
        _logger.info("CUDA graphs: %d in %.1f s, %.0f MiB", graphs.graphs, graphs.seconds, graphs.bytes / 2**20)


def _slot_shape(model: Model, config: EngineConfig, max_batch: int) -> SlotShape:
    shape = model.shape
    return SlotShape(
        max_rows=max_batch,
        max_tokens=max(config.max_prefill_tokens, shape.max_context),
        page_size=config.page_size,
        max_pages=-(-shape.max_context // config.page_size),
        mask_words=words(shape.vocab_size),
        # A zombie keeps its row for one step more, while a new sequence has got its place in the batch; and one row
        # takes what unused rows of a padded batch write.
        pending_rows=2 * max_batch + 1,
    )


def _plan(
    model: Model,
    where: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
    slots: SlotShape,
    make_body: Callable[[int], TorchBody],
) -> MemoryPlan:
    """Decide how many pages the cache has."""
    shape, page_size, rows = model.shape, config.page_size, slots.max_rows
    if config.kv_cache_bytes is not None or where.type != "cuda":
        size = config.kv_cache_bytes or cpu_cache_bytes(shape, dtype, page_size=page_size, max_rows=rows)
        return plan_memory(shape, dtype, page_size=page_size, max_rows=rows, kv_cache_bytes=size)
    sizes = sum(size <= rows for size in config.graph_sizes) if config.cuda_graphs else 0
    weights = torch.cuda.memory_allocated(where)
    activations = measure_activations(make_body, where, config.max_prefill_tokens, MAX_JOBS)
    return plan_memory(
        shape,
        dtype,
        page_size=page_size,
        max_rows=rows,
        memory=device_memory(where, config.gpu_memory_fraction, weights),
        activation_bytes=activations,
        graph_bytes=estimate_graph_bytes(sizes, config.depth, len(VARIANTS)),
    )

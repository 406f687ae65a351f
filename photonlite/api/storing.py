"""The store of a model: what its embeddings depend on, and where they are kept."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import photonlite
from photonlite.cache.store.arena import HostArena
from photonlite.cache.store.budget import CopyBudget
from photonlite.cache.store.disk import DiskTier, NumberFormat
from photonlite.cache.store.policy import TierPolicy
from photonlite.cache.store.store import WAITING_BYTES, DiskStore, ImageStore, Size
from photonlite.config import EngineConfig
from photonlite.errors import SettingsError
from photonlite.images.crops import CropSpec
from photonlite.models.base import Model
from photonlite.models.checkpoint import LoadedModel
from photonlite.models.fingerprint import fingerprint, known_fingerprint
from photonlite.runner.memory import MemoryPart, MemoryPlan
from photonlite.runner.stored_images import measure_bus
from photonlite.runner.swap import lock_pages
from photonlite.settings import with_home

_logger = logging.getLogger("photonlite")

_PROBE_BYTES = 8 * 2**20


def open_store(
    loaded: LoadedModel,
    device: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
) -> ImageStore | None:
    """Open the tiers that a configuration has; None if it has none. What computing takes is told by `connect`.

    Raises a SettingsError for a folder that cannot be used, or a model that has no files to be known by.
    """
    # Ranks of tensor parallelism have a part of the keys and values each.
    policy = TierPolicy(lambda: (None, None), pages=config.tensor_parallel == 1, copies=device.type == "cuda")
    if config.embedding_cache_bytes:
        policy.note_read("memory", _PROBE_BYTES, measure_bus(device, _PROBE_BYTES))
    size = config.embedding_cache_bytes
    keeps = device.type == "cuda" and (size or config.store is not None)
    arena = _open_arena(device, max(size, WAITING_BYTES)) if keeps else None
    if config.store is None:
        budget = CopyBudget(size) if device.type == "cuda" else None  # on a CPU nothing waits for a copy
        return ImageStore(size, policy, arena=arena, budget=budget) if size else None
    files = loaded.files
    if files is None:
        raise SettingsError("engine setting 'store' is for models that were loaded from files: leave it out")
    tier = DiskTier(with_home(config.store), config.store_bytes)
    notes = tier.notes
    numbers = [device.type, str(dtype), f"fp8 {config.fp8_linears}", f"fused {config.fused}", repr(loaded.precisions)]
    pages = [f"kv {config.kv_dtype}", f"page {config.page_size}"]
    rules = [repr(loaded.model.crop_spec)]

    def context(content: str) -> str:
        return "\n".join(["photonlite", photonlite.__version__, torch.__version__, content, *numbers, *pages, *rules])

    known = known_fingerprint(files, notes)
    found = context(known) if known is not None else lambda: context(fingerprint(files, notes))
    expected = stored_format(loaded.model, dtype, config)
    return ImageStore(size, policy, DiskStore(tier, found, policy, expected), arena=arena)


def _open_arena(device: torch.device, size: int) -> HostArena | None:
    """Page-lock host memory for a card; None where that fails: what is copied is then locked piece by piece."""
    memory = np.empty(size, np.uint8)
    try:
        with torch.cuda.device(device):
            lock_pages(torch.from_numpy(memory), memory)
    except RuntimeError as error:
        _logger.warning("%.2f GiB of host memory for images cannot be page-locked: %s", size / 2**30, error)
        return None
    return HostArena(memory)


def stored_format(model: Model, dtype: torch.dtype, config: EngineConfig) -> Callable[[Size | int], NumberFormat]:
    """Return what an engine takes of an image of a size, or of so many pages; see `image_inputs.StoredImage`."""
    shape, spec = model.shape, model.crop_spec
    kept = "float8_e4m3fn" if config.kv_dtype == "fp8" else _name(dtype)

    def expected(size: Size | int) -> NumberFormat:
        if isinstance(size, int):
            return NumberFormat((2, shape.layers, size, shape.kv_heads, config.page_size, shape.head_dim), kept)
        leading = shape.prefix_length or 1  # BOS and the image
        positions = leading - 1 if isinstance(spec, CropSpec) else math.prod(spec.positions_of(size))
        return NumberFormat((shape.levels, positions, shape.dim), _name(dtype))

    return expected


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def with_host_parts(plan: MemoryPlan, config: EngineConfig) -> MemoryPlan:
    """Return an engine's plan with what its model takes beside it, in host memory and on disk."""
    parts = [
        MemoryPart("computed for images", "host", config.embedding_cache_bytes, "kept for later questions"),
        MemoryPart("decoded images", "host", config.max_prepared_bytes, "that may wait for the engine"),
        MemoryPart("compiled grammars", "host", config.grammar_cache_bytes),
        MemoryPart("adapters", "host", config.adapter_bytes, "once one is loaded"),
    ]
    if config.swap_bytes:
        parts.append(MemoryPart("swapped pages", "host", config.swap_bytes, "of sequences that gave way"))
    if config.store is not None:
        parts.append(MemoryPart("computed for images", "disk", config.store_bytes, f"in {config.store}"))
    return replace(plan, parts=(*plan.parts, *parts))

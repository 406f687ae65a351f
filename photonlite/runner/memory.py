"""The memory plan: how many pages of keys and values there is room for, decided once at start, or refused.

```
card      total x fraction
        - in use already          weights, the image encoder's graphs, the CUDA context, other processes
        - activations             of the largest launch, measured by running it
        - workspaces              of libraries and kernels, and what the allocator cannot use
        - graphs
        = pages of keys and values, at least as many as one longest request needs, and the scratch page
```
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from photonlite.errors import CapacityError
from photonlite.models.base import ModelShape

WORKSPACE_BYTES = 512 * 2**20
"""Left to libraries, kernels and fragmentation on a card."""

GRAPH_BYTES = 2 * 2**20
"""What one captured graph takes, about, besides the activations that all share."""

_CPU_SHARE = 4


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What is there, in bytes.

    Attributes:
        total: Of the card.
        free: Of it, with the weights loaded.
        fraction: Share of the total that may be used.
        weights: Of the model; part of what is not free, told apart in messages only.
    """

    total: int
    free: int
    fraction: float
    weights: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the cache gets.

    Attributes:
        pages: Of the cache, the scratch page among them.
        page_bytes: Keys and values of one page, all layers; in FP8 half of what they take in bfloat16.
        kv_bytes: Of the cache.
        longest_pages: What one longest request needs.
    """

    pages: int
    page_bytes: int
    kv_bytes: int
    longest_pages: int


def plan_memory(
    shape: ModelShape,
    dtype: torch.dtype,
    *,
    page_size: int,
    max_rows: int,
    kv_cache_bytes: int | None = None,
    memory: DeviceMemory | None = None,
    activation_bytes: int = 0,
    graph_bytes: int = 0,
) -> MemoryPlan:
    """Decide how many pages the cache has.

    Args:
        shape: Of the model.
        dtype: Of keys and values as they are stored.
        page_size: Positions of a page.
        max_rows: Sequences that run at a time; only for the advice in a refusal.
        kv_cache_bytes: What the cache may take; None for what `memory` leaves.
        memory: Of a card; needed where `kv_cache_bytes` is None.
        activation_bytes: What the largest launch takes on a card.
        graph_bytes: What captured graphs take.

    Raises:
        CapacityError: Not even one longest request fits; the message holds the arithmetic.
    """
    page_bytes = bytes_of_page(shape, dtype, page_size)
    longest = longest_pages(shape, page_size)
    if kv_cache_bytes is not None:
        room, sums = kv_cache_bytes, f"kv_cache_bytes gives {_shown(kv_cache_bytes)}"
        advice = f"set kv_cache_bytes to {(longest + 1) * page_bytes} or more"
    elif memory is not None:
        room, sums = _left(memory, activation_bytes, graph_bytes)
        advice = (
            "raise gpu_memory_fraction, end other processes on the card, "
            f"or lower max_batch (now {max_rows}), max_prefill_tokens, max_crops or graph_sizes"
        )
    else:
        raise ValueError("a memory plan needs either kv_cache_bytes or the memory of a device")
    if dtype.itemsize > 1:
        advice += f", or keep keys and values in fewer bytes: kv_dtype='fp8' makes pages {dtype.itemsize} times smaller"
    pages = max(0, room // page_bytes)
    if pages < longest + 1:
        raise CapacityError(
            f"not even one request of the longest context fits the key/value cache: {sums}; a page of {page_size} "
            f"positions takes {_shown(page_bytes)}, so there is room for {pages} pages; {shape.max_context} positions "
            f"need {longest}, the copy of an image's last page included, and one page is kept for padding: "
            f"{_shown((longest + 1) * page_bytes)} in all; {advice}"
        )
    return MemoryPlan(pages, page_bytes, pages * page_bytes, longest)


def longest_pages(shape: ModelShape, page_size: int) -> int:
    """Give the pages that one longest request needs when it is alone.

    One more than its positions fill where the image ends inside a page: the prefix cache keeps a copy of that one.
    """
    return -(-shape.max_context // page_size) + (shape.prefix_length % page_size != 0)


def bytes_of_page(shape: ModelShape, dtype: torch.dtype, page_size: int) -> int:
    """Give the bytes of one page: keys and values of all layers, stored as `dtype`."""
    return 2 * shape.layers * page_size * shape.kv_heads * shape.head_dim * dtype.itemsize


def cpu_cache_bytes(
    shape: ModelShape, dtype: torch.dtype, *, page_size: int, max_rows: int, physical: int | None = None
) -> int:
    """Give the size of the cache on the CPU: enough for `max_rows` longest requests, at most a quarter of the memory.

    One longest request fits in any case: the memory is only taken as it is written.

    Args:
        shape: Of the model.
        dtype: Of keys and values.
        page_size: Positions of a page.
        max_rows: Sequences that run at a time.
        physical: Bytes of memory; those of this machine unless given.
    """
    if physical is None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    page_bytes = bytes_of_page(shape, dtype, page_size)
    longest = longest_pages(shape, page_size)
    return page_bytes * max(longest + 1, min(max_rows * longest + 1, physical // _CPU_SHARE // page_bytes))


class Rehearsal(Protocol):
    """A body that can run its largest launches; see `runner.torch_body`."""

    def rehearse(self, positions: int, images: int) -> None:
        """Run them and wait."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


def measure_activations(
    make_body: Callable[[int], Rehearsal], device: torch.device, positions: int, images: int
) -> int:
    """Measure on a card what the largest launches take, a body's buffers included.

    Args:
        make_body: Makes a body whose cache has so many pages; it is closed again.
        device: The card.
        positions: That a launch prefills at most.
        images: Whose features are on the card at a time.

    Returns:
        Bytes at the peak.
    """
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    body = make_body(1)
    try:
        with torch.cuda.device(device):  # Triton launches on the current one
            body.rehearse(positions, images)
        return torch.cuda.max_memory_allocated(device) - before
    finally:
        body.close()


def device_memory(device: torch.device, fraction: float, weights: int) -> DeviceMemory:
    """Read what a card has and what is free of it."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, fraction, weights)


def estimate_graph_bytes(sizes: int, depth: int, variants: int) -> int:
    """Estimate what the graphs of so many sizes, slots and variants of finalize take.

    Their activations are those of a launch that was measured already, but live in a pool of their own: they are small.
    """
    return GRAPH_BYTES * sizes * depth * (1 + 2 * variants)


def _left(memory: DeviceMemory, activations: int, graphs: int) -> tuple[int, str]:
    """Give the bytes that a card has left for the cache, and how they come about."""
    allowed = math.floor(memory.total * memory.fraction)
    used = memory.total - memory.free
    left = allowed - used - activations - WORKSPACE_BYTES - graphs
    sums = (
        f"of {_shown(memory.total)} on the card {memory.fraction:g} may be used, {_shown(allowed)}; "
        f"{_shown(used)} are in use already ({_shown(memory.weights)} of them by the weights), the largest launch "
        f"takes {_shown(activations)}, workspaces {_shown(WORKSPACE_BYTES)}, graphs {_shown(graphs)}; "
        f"{_shown(left)} are left"
    )
    return left, sums


def _shown(count: int) -> str:
    """Write bytes for a reader."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"

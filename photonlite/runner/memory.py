"""The memory plan: how many pages of keys and values fit, decided once at start, or refused.

```
card      total x fraction
        - in use already          weights, the image encoder's graphs, the CUDA context, other processes
        - activations             of the largest launch, measured by running it; beside steps, of an encoding as well
        - workspaces              of libraries and kernels, and fragmentation
        - graphs
        - staging                of pages that are swapped, or were kept of images
        = pages of keys and values: at least those of one longest request, and the scratch page
```
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from photonlite.errors import CapacityError
from photonlite.models.base import ModelShape
from photonlite.runner.torch_model_runner import TorchModelRunner

WORKSPACE_BYTES = 512 * 2**20  # reserved for libraries, kernels and fragmentation on a card
GRAPH_BYTES = 2 * 2**20  # approximate size of a captured graph, besides the activations that all share
_CPU_SHARE = 4


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a card in bytes, with the weights loaded."""

    total: int
    free: int
    fraction: float  # of the total that may be used
    weights: int = 0  # part of what is not free; only for messages


class MemoryPart(NamedTuple):
    what: str
    place: str  # "device", "host" or "disk"
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What an engine takes, decided at start; as text it is a table."""

    pages: int  # the scratch page included
    page_bytes: int  # keys and values of one page, all layers; in FP8 half of what they take in bfloat16
    kv_bytes: int
    parts: tuple[MemoryPart, ...] = ()
    tuning: str = ""  # what says if encoding and decoding have parts of the card; empty where nothing does

    def __str__(self) -> str:
        rows = [(part.place, part.what, _shown(part.bytes), part.note) for part in self.parts]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{place:{widths[0]}}  {what:{widths[1]}}  {size:>{widths[2]}}  {note}".rstrip()
            for place, what, size, note in rows
        ]
        return "\n".join(lines + [f"encoding and decoding by {self.tuning}"] * bool(self.tuning))


def plan_memory(
    shape: ModelShape,
    dtype: torch.dtype,  # of stored keys and values
    *,
    page_size: int,
    max_rows: int,  # only for the advice in a refusal
    kv_cache_bytes: int | None = None,  # None for what `memory` leaves
    memory: DeviceMemory | None = None,  # of a card
    activation_bytes: int = 0,  # of the largest launch on a card
    graph_bytes: int = 0,
    staging_bytes: int = 0,  # of pages between the host and the cache
    weight_bytes: int = 0,  # only for the plan's table
) -> MemoryPlan:
    """Decide how many pages the cache has; CapacityError, with the arithmetic, if not even one longest request fits."""
    page_bytes = bytes_of_page(shape, dtype, page_size)
    longest = longest_pages(shape, page_size)
    if kv_cache_bytes is not None:
        room, sums = kv_cache_bytes, f"kv_cache_bytes gives {_shown(kv_cache_bytes)}"
        advice = f"set kv_cache_bytes to {(longest + 1) * page_bytes} or more"
    elif memory is not None:
        room, sums = _left(memory, activation_bytes, graph_bytes, staging_bytes)
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
    note = (
        f"{pages} pages of {page_size} positions; one longest request, {shape.max_context} positions, takes {longest}"
    )
    cache = MemoryPart("keys and values", "device", pages * page_bytes, note)
    parts = _device_parts(memory, weight_bytes, activation_bytes, graph_bytes, staging_bytes)
    return MemoryPlan(pages, page_bytes, pages * page_bytes, (*parts, cache))


def _device_parts(
    memory: DeviceMemory | None, weights: int, activations: int, graphs: int, staging: int
) -> list[MemoryPart]:
    if memory is None:
        return [MemoryPart("weights", "device", weights)]
    others = memory.total - memory.free - memory.weights
    return [
        MemoryPart("may be used", "device", math.floor(memory.total * memory.fraction), f"{memory.fraction:g} of all"),
        MemoryPart("weights", "device", memory.weights),
        MemoryPart("others", "device", others, "the CUDA context, graphs of the image encoder, other processes"),
        MemoryPart("activations", "device", activations, "of the largest launch, staging buffers included; measured"),
        MemoryPart("workspaces", "device", WORKSPACE_BYTES, "of libraries, copies on their way to the host"),
        MemoryPart("graphs", "device", graphs, "of prompts and decode steps"),
        MemoryPart("staging", "device", staging, "of swapped pages, and of restored ones"),
    ]


def longest_pages(shape: ModelShape, page_size: int) -> int:
    """Pages of one longest request; one more if the image ends inside a page, which the prefix cache copies."""
    ends_inside = page_size > 1 if shape.prefix_length is None else shape.prefix_length % page_size != 0
    return -(-shape.max_context // page_size) + ends_inside


def bytes_of_page(shape: ModelShape, dtype: torch.dtype, page_size: int) -> int:
    return 2 * shape.layers * page_size * shape.kv_heads * shape.head_dim * dtype.itemsize


def cpu_cache_bytes(
    shape: ModelShape, dtype: torch.dtype, *, page_size: int, max_rows: int, physical: int | None = None
) -> int:
    """`max_rows` longest requests, at most a quarter of memory, at least one: memory is only taken as it is written."""
    if physical is None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    page_bytes = bytes_of_page(shape, dtype, page_size)
    longest = longest_pages(shape, page_size)
    return page_bytes * max(longest + 1, min(max_rows * longest + 1, physical // _CPU_SHARE // page_bytes))


def measure_activations(
    make_runner: Callable[[int], TorchModelRunner], device: torch.device, positions: int, images: int
) -> int:
    """Return the peak bytes of the largest launches, runner buffers included; `make_runner` takes a number of pages."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    runner = make_runner(1)
    try:
        with torch.cuda.device(device):  # Triton launches on the current one
            runner.rehearse(positions, images)
        return torch.cuda.max_memory_allocated(device) - before
    finally:
        runner.close()


def device_memory(device: torch.device, fraction: float, weights: int) -> DeviceMemory:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, fraction, weights)


def estimate_graph_bytes(sizes: int, depth: int, variants: int) -> int:
    """Estimate the bytes of graphs; their activations are measured separately and live in a pool of their own."""
    return GRAPH_BYTES * sizes * depth * (1 + 2 * variants)


def _left(memory: DeviceMemory, activations: int, graphs: int, staging: int) -> tuple[int, str]:
    """Return the bytes that a card has left for the cache, and the arithmetic as text."""
    allowed = math.floor(memory.total * memory.fraction)
    used = memory.total - memory.free
    left = allowed - used - activations - WORKSPACE_BYTES - graphs - staging
    sums = (
        f"of {_shown(memory.total)} on the card {memory.fraction:g} may be used, {_shown(allowed)}; "
        f"{_shown(used)} are in use already ({_shown(memory.weights)} of them by the weights), the largest launch "
        f"takes {_shown(activations)}, workspaces {_shown(WORKSPACE_BYTES)}, graphs {_shown(graphs)}, "
        f"staging {_shown(staging)}; "
        f"{_shown(left)} are left"
    )
    return left, sums


def _shown(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"

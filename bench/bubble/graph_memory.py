"""What the second slot's graphs cost: memory of decode graphs of one slot and of two, from one pool or from several."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from bench.bubble.report import table
from bench.bubble.subjects import Subject
from photonlite.grammar.automata.tables import words
from photonlite.runner.graphs import Capturer, CudaCapturer, GraphOptions, GraphReport
from photonlite.runner.slots import SlotShape
from photonlite.runner.torch_model_runner import FusedParts, RunnerLimits, TorchModelRunner

Pools = Literal["one", "slot", "graph"]
"""Whether all graphs share one memory pool, those of a slot do, or each has its own."""

CASES: tuple[tuple[int, Pools], ...] = ((1, "one"), (2, "one"), (2, "slot"), (2, "graph"))
_PAGE = 16


class PooledCapturer:
    """Captures graphs into one pool or several.

    Args:
        pools: How graphs share pools.
        make: Makes a capturer with a pool of its own.

    Attributes:
        capturers: Those that were made.
    """

    def __init__(self, pools: Pools, make: Callable[[], Capturer]) -> None:
        self._pools = pools
        self._make = make
        self._by_slot: dict[int, Capturer] = {}
        self.capturers: list[Capturer] = []

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture into the pool of the work's slot; see `photonlite.runner.graphs.Capturer`."""
        return self._capturer(work).capture(work)

    def used_bytes(self) -> int:
        """Return the device memory in use, by any process."""
        if not self.capturers:
            self._by_slot[0] = self._new()
        return self.capturers[0].used_bytes()

    def _capturer(self, work: Callable[[], None]) -> Capturer:
        if self._pools == "graph":
            return self._new()
        slot = _slot_of(work) if self._pools == "slot" else 0
        if slot not in self._by_slot:
            self._by_slot[slot] = self._new()
        return self._by_slot[slot]

    def _new(self) -> Capturer:
        made = self._make()
        self.capturers.append(made)
        return made


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """What graphs took.

    Attributes:
        slots: Whose graphs there are.
        pools: How they share memory.
        report: Graphs, seconds and bytes of the card that are gone.
        reserved: Bytes that PyTorch's allocator holds for them, part of these.
    """

    slots: int
    pools: Pools
    report: GraphReport
    reserved: int


def measure_graph_memory(
    subject: Subject, sizes: Sequence[int], make: Callable[[], Capturer] | None = None
) -> list[GraphMemory]:
    """Capture the decode graphs of the subject in each of `CASES`.

    Args:
        subject: Whose decode steps are captured, and the sampling behind them; not its prompts.
        sizes: Batch sizes.
        make: Makes a capturer with a pool of its own; CUDA's unless given.
    """
    make = make or functools.partial(CudaCapturer, subject.device)
    return [_capture(subject, sizes, slots, pools, make) for slots, pools in CASES]


def _capture(
    subject: Subject, sizes: Sequence[int], slots: int, pools: Pools, make: Callable[[], Capturer]
) -> GraphMemory:
    shape, rows = subject.model.shape, max(sizes)
    slot = SlotShape(
        rows, shape.max_context, _PAGE, -(-shape.max_context // _PAGE), words(shape.vocab_size), 2 * rows + 1
    )
    limits = RunnerLimits(slot, pages=1, depth=slots, max_crops=1)
    fused = FusedParts(steps=subject.model.step_decoder())
    runner = TorchModelRunner(subject.model, subject.device, subject.dtype, limits, fused=fused)
    try:
        if subject.device.type == "cuda":
            torch.cuda.empty_cache()
        before = _reserved(subject.device)
        report = runner.capture(GraphOptions(tuple(sizes)), PooledCapturer(pools, make))
        return GraphMemory(slots, pools, report, _reserved(subject.device) - before)
    finally:
        runner.close()


def _slot_of(work: Callable[[], None]) -> int:
    """Return the slot whose graph is captured: `DecodeGraphs` binds it as the first argument."""
    if not isinstance(work, functools.partial):
        raise AssertionError(f"the work to capture is a {type(work).__name__}, not bound to a slot")
    return int(work.args[0])


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def graph_memory_table(found: Sequence[GraphMemory], sizes: Sequence[int]) -> str:
    """Write what graphs took, and what the second slot added to the first."""
    named = {"one": "one for all graphs", "slot": "one a slot", "graph": "one a graph"}
    head = ["slots", "memory pools", "graphs", "memory (MiB)", "of it PyTorch's pools (MiB)", "against one slot"]
    head += ["seconds"]
    first = found[0].report.bytes
    rows = [
        [
            str(one.slots),
            named[one.pools],
            str(one.report.graphs),
            f"{one.report.bytes / 2**20:.0f}",
            f"{one.reserved / 2**20:.0f}",
            f"{(one.report.bytes - first) / 2**20:+.0f} MiB",
            f"{one.report.seconds:.1f}",
        ]
        for one in found
    ]
    what = f"Decode graphs of {', '.join(map(str, sizes))} rows, and the sampling behind them."
    return f"{what}\n\n{table(head, rows, left=2)}"

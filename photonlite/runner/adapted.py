"""Launches some of whose rows have adapters, as CUDA graphs over buffers of their own.

```
rows of the slot ── copy ──> rows ─┐
slots of adapters ─ upload ─> index ┴─ graph of the size: the model with adapters ──> hidden ── copy ──> of the slot
prompts of the slot, packed, with the slot of each position's adapter ── another `Prefill` ──> hidden of the slot
```

Which adapter is in which slot is not part of a graph: it reads the slots' memory, which stays where it is. All launches
run one after the other on the compute stream, so one set of buffers serves both slots of the pipeline. They are
captured on the thread that loads an adapter, while other requests run: what runs for that writes to the scratch page.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import Counters, counting_in
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import AdaptableDecoder, PromptDecoder, StepDecoder
from photonlite.runner.buffers import Buffers, transfer
from photonlite.runner.context import ForwardContext
from photonlite.runner.decode import Decode
from photonlite.runner.graphs import Capturer, GraphReport, measured, try_capture
from photonlite.runner.prefill import Prefill
from photonlite.runner.slots import Slot

LONGEST = 2048
"""Positions of the longest graph of prompts with adapters: two images. Graphs of longer ones hold twice the memory."""


class AdaptedLaunches:
    """Runs launches some of whose rows have adapters of a bank: as graphs, or in the operations of its model.

    Graphs are captured by the thread that loads an adapter, and used by the launches that follow.
    """

    def __init__(
        self,
        bank: AdapterBank,
        context: ForwardContext,
        steps: StepDecoder | None,
        prompts: PromptDecoder | None,
        like: Buffers,
    ) -> None:
        self.bank = bank
        self._context, self._steps, self._prompts, self._like = context, steps, prompts, like
        self._plain = Decode(None, context, bank.model)
        self._graphs: AdaptedGraphs | None = None  # in use
        self._captured: AdaptedGraphs | None = None  # the next ones

    def capture(self, capturer: Capturer, sizes: Iterable[int]) -> GraphReport | None:
        """Capture prompts and steps of these sizes; None where the bank has got no places for further terms since."""
        latest = self._captured or self._graphs
        if latest is not None and latest.is_current:
            return None
        generation = self.bank.generation  # what is added while the steps are made needs other graphs
        step, prompts = self._plain, None
        if isinstance(self._steps, AdaptableDecoder):
            step = Decode(self._steps.adapted(self.bank), self._context, self.bank.model, most=MAX_ROWS)
        if isinstance(self._prompts, AdaptableDecoder):
            prompts = Prefill(self._prompts.adapted(self.bank), self._context, self.bank)
        graphs = AdaptedGraphs(self._like, self.bank, step, prompts, generation)
        report = graphs.capture(capturer, sizes)
        self._captured = graphs
        return report

    def has_step(self, size: int) -> bool:
        """Whether a graph runs a step of this size."""
        latest = self._captured or self._graphs
        return latest is not None and latest.has_step(size)

    def find_prompts(self) -> Prefill | None:
        """Return what runs prompts with all terms that the bank has places for, captured or not; None without one."""
        graphs = self._latest()
        return None if graphs is None else graphs.prompts

    def decode(self, buffers: Buffers, slot: Slot, count: int) -> None:
        """Run a step of so many rows of a slot."""
        graphs = self._latest()
        if graphs is not None and graphs.replay(buffers, slot, count):
            return
        rows = AdapterRows.of(slot.adapters[:count].tolist(), [1] * count, buffers.rows.device)
        with self.bank.running(rows):
            buffers.hidden[:count].copy_(self._plain(buffers.rows[:count]))

    def _latest(self) -> "AdaptedGraphs | None":
        """Take the graphs into use that were captured last."""
        if self._captured is not None:
            if self._like.rows.is_cuda:
                torch.cuda.synchronize(self._like.rows.device)  # no launch reads the memory of earlier graphs
            self._graphs, self._captured = self._captured, None
        return self._graphs


class AdaptedGraphs:
    """Decode steps, and prompts where fused kernels run them, with the terms that a bank had places for.

    Their kernels count arrivals apart from other launches, which run while these are warmed up.
    """

    def __init__(
        self, like: Buffers, bank: AdapterBank, step: Decode, prompts: Prefill | None, generation: int
    ) -> None:
        self._bank, self._step, self._generation = bank, step, generation
        self._rows, self._hidden = torch.zeros_like(like.rows), torch.zeros_like(like.hidden)
        self._index = torch.zeros(len(like.rows), dtype=torch.int32, device=like.rows.device)
        self._prompts = prompts
        self._counters: Counters = {}
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self, capturer: Capturer, sizes: Iterable[int]) -> GraphReport:
        """Capture prompts and each size of steps, largest first; what cannot be captured runs without a graph."""
        with torch.inference_mode(), measured(capturer) as report, counting_in(self._counters):
            graphs = self._prompts.capture(capturer, LONGEST).graphs if self._prompts is not None else 0
            for size in sorted(sizes, reverse=True):
                what = f"decode steps of {size} rows with adapters run"
                if replay := try_capture(capturer, partial(self._run, size), what):
                    self._replays[size] = replay
            return report(graphs + len(self._replays))

    @property
    def is_current(self) -> bool:
        """Whether the graphs add all terms that the bank has places for."""
        return self._bank.generation == self._generation

    @property
    def prompts(self) -> Prefill | None:
        """What runs prompts with the terms that the bank has places for, captured or not."""
        return self._prompts if self.is_current else None

    def has_step(self, count: int) -> bool:
        return count in self._replays and self.is_current

    def replay(self, buffers: Buffers, slot: Slot, count: int) -> bool:
        """Replay the graph of a size on the current stream; return whether there is one that is current."""
        if not self.has_step(count):
            return False
        self._rows[:count].copy_(buffers.rows[:count])
        transfer(self._index[:count], slot.adapters[:count])
        self._replays[count]()
        buffers.hidden[:count].copy_(self._hidden[:count])
        return True

    def _run(self, size: int) -> None:
        rows = AdapterRows(size, None, self._index[:size])
        with self._bank.running(rows):
            self._hidden[:size].copy_(self._step(self._rows[:size]))

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
from torch import Tensor

from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import Counters, counting_in
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import AdaptableDecoder, Model, StepDecoder
from photonlite.runner.buffers import Buffers, transfer
from photonlite.runner.graphs import Capturer, GraphReport, measured, try_capture
from photonlite.runner.prefill import Prefill
from photonlite.runner.slots import Slot

LONGEST = 2048
"""Positions of the longest graph of prompts with adapters: two images. Graphs of longer ones hold twice the memory."""

AdaptedStep = Callable[[Tensor, Model], Tensor]
"""Maps rows, int32 ``[B, 4 + P]``, to raw hidden states ``[B, dim]`` as a bank's model does, inside its `running`."""


def adapted_step(
    decoder: StepDecoder | None,
    bank: AdapterBank,
    counters: Counters,
    plain: AdaptedStep,
    fused: Callable[[Tensor, StepDecoder, Counters], Tensor],
) -> AdaptedStep:
    """Return what computes a step: the kernels of steps without adapters where these can add terms, or `plain`."""
    if not isinstance(decoder, AdaptableDecoder):
        return plain
    adapted: StepDecoder = decoder.adapted(bank)
    return lambda rows, model: fused(rows, adapted, counters) if len(rows) <= MAX_ROWS else plain(rows, model)


class AdaptedGraphs:
    """Decode steps, and prompts where fused kernels run them; `counters` are those of their kernels.

    They are not those of other launches, which run while these are warmed up.
    """

    def __init__(
        self,
        like: Buffers,
        bank: AdapterBank,
        step: AdaptedStep,
        prompts: Prefill | None,
        counters: Counters,
        generation: int,
    ) -> None:
        self._bank, self._step, self._counters, self._generation = bank, step, counters, generation
        self._rows, self._hidden = torch.zeros_like(like.rows), torch.zeros_like(like.hidden)
        self._index = torch.zeros(len(like.rows), dtype=torch.int32, device=like.rows.device)
        self._prompts = prompts
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self, capturer: Capturer, sizes: Iterable[int]) -> GraphReport:
        """Capture prompts and each size of steps, largest first; what cannot be captured runs without a graph."""
        with torch.inference_mode(), measured(capturer) as report:
            graphs = 0
            if self._prompts is not None:
                with counting_in(self._counters):
                    graphs = self._prompts.capture(capturer, LONGEST).graphs
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
        with self._bank.running(rows) as model:
            self._hidden[:size].copy_(self._step(self._rows[:size], model))

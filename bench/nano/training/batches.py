"""Endless batches of scenes and questions; on a GPU by replaying CUDA graphs, which frees the host from launches."""

import math
import random
from collections import Counter

import torch
from torch import Tensor

from bench.nano.questions.maker import QuestionMaker
from bench.nano.questions.mix import ASKED, ROOM
from bench.nano.scenes.batched.compose import Composer
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.training.loss import dense_targets, pack
from photonlite.images.crops import CropSpec, select_tiling

Tiling = tuple[int, int]
_REFRESH_EVERY = 4  # batches between two strokes of fresh backgrounds
_STROKE = 8  # backgrounds painted anew at a time
_LEAST_SHARE = 0.04


class BatchSource:
    """Makes scenes and questions of one tiling.

    On a GPU the next batch is made on a separate stream during the current training step: its many small kernels go
    first wherever a block of a large product ends. Two stores alternate. A CUDA graph freezes what the host draws
    (sizes of degraded images), so there are several graphs, replayed at random.
    """

    def __init__(self, composer: Composer, maker: QuestionMaker, batch: int, graphs: int = 5) -> None:
        self.composer, self.maker, self.batch = composer, maker, batch
        self.difficulty = Difficulty().tensor(composer.device)
        self.graphs: list[tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]] = []
        self.batches = 0
        if composer.device.type == "cuda":
            self.stream = torch.cuda.Stream(composer.device, priority=-1)  # type: ignore[no-untyped-call]
            self._capture(graphs)
            self.stores = [tuple(map(torch.empty_like, self.graphs[0][1])) for _ in range(2)]
            self.made = [self.stream.record_event() for _ in range(2)]
            self._prepare(Difficulty())

    def __call__(self, difficulty: Difficulty) -> tuple[Tensor, ...]:
        """Return the arguments of `Learner.forward`, and where questions begin; overwritten two calls later.

        On a GPU `difficulty` is that of the next batch; this one has the last call's.
        """
        if not self.graphs:
            self._refresh()
            self.batches += 1
            self.difficulty.copy_(difficulty.tensor(self.difficulty.device))
            return self._make()
        store = self.batches % 2
        torch.cuda.current_stream().wait_event(self.made[store])
        self.batches += 1
        self._prepare(difficulty)
        return self.stores[store]

    def _prepare(self, difficulty: Difficulty) -> None:
        """Make the next batch, behind the steps launched so far."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._refresh()
            for place, value in enumerate((difficulty.max_count, difficulty.min_size)):
                self.difficulty[place].fill_(value)  # a kernel's argument: no copy that the host would wait for
            graph, made = random.choice(self.graphs)
            graph.replay()
            torch._foreach_copy_(list(self.stores[self.batches % 2]), list(made))
            self.made[self.batches % 2].record()

    def _refresh(self) -> None:
        if self.batches % _REFRESH_EVERY == 0:
            self.composer.bank.refresh(_STROKE)

    def _capture(self, graphs: int) -> None:
        for _ in range(3):
            self._make()
        torch.cuda.synchronize()
        for _ in range(graphs):
            graph = torch.cuda.CUDAGraph()
            # Kernels of a graph have the priority of the stream on which they were captured.
            with torch.cuda.graph(graph, pool=self.graphs[0][0].pool() if self.graphs else None, stream=self.stream):
                made = self._make()
            self.graphs.append((graph, made))

    @torch.no_grad()
    def _make(self) -> tuple[Tensor, ...]:
        scenes = self.composer(self.batch, self.difficulty)
        asked = [question for _ in range(ASKED) for question in self.maker(scenes)]
        return (scenes.pixels, *dense_targets(scenes), *pack(asked, ASKED * self.maker.parts, ROOM))


def tiling_shares(spec: CropSpec, seed: int = 0, samples: int = 4096) -> dict[Tiling, float]:
    """Estimate how often images of the domain come in each tiling; rare ones are left out, the rest add up to 1.

    Images have a longer side of 160 to 1600 pixels, evenly by ratio, and an aspect of 1 to 2.
    """
    rng = random.Random(seed)
    seen: Counter[Tiling] = Counter()
    for _ in range(samples):
        aspect = 2 ** rng.uniform(0, 1)
        longer = math.exp(rng.uniform(math.log(160 * aspect), math.log(1600)))
        sides = round(longer / aspect), round(longer)
        seen[select_tiling(*(sides if rng.random() < 0.5 else sides[::-1]), spec)] += 1
    kept = {tiling: count for tiling, count in seen.items() if count >= _LEAST_SHARE * samples}
    return {tiling: count / sum(kept.values()) for tiling, count in sorted(kept.items())}


def sheet_size(spec: CropSpec, tiling: Tiling) -> tuple[int, int]:
    """Height and width of the sheet that a tiling's local crops are cut from."""
    if tiling == (1, 1):
        return spec.crop_size, spec.crop_size
    rows, columns = tiling
    return rows * spec.window + 2 * spec.margin, columns * spec.window + 2 * spec.margin

"""Endless batches of scenes and questions; on a GPU by replaying CUDA graphs, which frees the host from launches."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bench.nano.questions.maker import QuestionMaker
from bench.nano.questions.mix import ASKED, ROOM
from bench.nano.scenes.batched.compose import Composer
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.training.loss import pack
from photonlite.images.crops import CropSpec, select_tiling

Tiling = tuple[int, int]
Batch = tuple[Tensor, ...]
_LANES = 2
_REFRESH_EVERY = 4  # batches between two strokes of fresh backgrounds
_STROKE = 8  # backgrounds painted anew at a time
_LEAST_SHARE = 0.04


class Lane:
    """A stream that makes batches, and graphs of it, one of which is replayed at random."""

    def __init__(self, device: torch.device, make: Callable[[], Batch], graphs: int) -> None:
        # Kernels of a graph have the priority of the stream on which they were captured.
        self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.graphs: list[tuple[torch.cuda.CUDAGraph, Batch]] = []
        with _own_random_state(device):
            for _ in range(graphs):
                graph = torch.cuda.CUDAGraph()
                pool = self.graphs[0][0].pool() if self.graphs else None
                with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                    made = make()
                self.graphs.append((graph, made))


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    """Let graphs that are captured in a block draw from a state of their own.

    All graphs of one state read its offset from one place on the card, which each replay writes: on two streams at a
    time they would draw the same numbers from there on.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    shared = generator.graphsafe_get_state()
    own = torch.Generator(device)
    own.manual_seed(random.getrandbits(62))
    generator.graphsafe_set_state(own.graphsafe_get_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(shared)


class BatchSource:
    """Makes scenes and questions of one tiling.

    On a GPU batches are made on two streams of their own, each during two training steps: their many small kernels,
    which take long one by one and use little of the card, go first wherever a block of a large product ends. A CUDA
    graph freezes what the host draws (sizes of degraded images), so there are several graphs, replayed at random.
    """

    def __init__(self, composer: Composer, maker: QuestionMaker, batch: int, graphs: int = 3) -> None:
        self.composer, self.maker, self.batch = composer, maker, batch
        self.difficulty = Difficulty().tensor(composer.device)
        self.lanes: list[Lane] = []
        self.batches = 0
        if composer.device.type == "cuda":
            for _ in range(3):
                self._make()
            torch.cuda.synchronize()
            self.lanes = [Lane(composer.device, self._make, graphs) for _ in range(_LANES)]
            like = self.lanes[0].graphs[0][1]
            self.stores = [tuple(map(torch.empty_like, like)) for _ in range(2 * _LANES)]
            self.made = [lane.stream.record_event() for lane in self.lanes * 2]
            self.read = torch.cuda.current_stream().record_event()
            for number in range(_LANES):
                self._prepare(number, Difficulty())

    def __call__(self, difficulty: Difficulty) -> Batch:
        """Return the arguments of `Learner.forward`, and where questions begin; overwritten two calls later.

        On a GPU `difficulty` is that of the batch after the next; this one has that of the call before the last.
        """
        self.batches += 1
        if not self.lanes:
            self._refresh()
            self.difficulty.copy_(difficulty.tensor(self.difficulty.device))
            return self._make()
        number = self.batches - 1
        torch.cuda.current_stream().wait_event(self.made[number % len(self.stores)])
        self._prepare(number + _LANES, difficulty)
        self.read = torch.cuda.current_stream().record_event()  # steps before this one have read their batches
        return self.stores[number % len(self.stores)]

    def _prepare(self, number: int, difficulty: Difficulty) -> None:
        """Make a batch; the step before the last, which had its store before, has read it.

        Both lanes may change the difficulty and paint backgrounds while the other one reads them: a scene of both, now
        and then, does no harm.
        """
        lane, place = self.lanes[number % _LANES], number % len(self.stores)
        lane.stream.wait_event(self.read)
        with torch.cuda.stream(lane.stream):
            self._refresh()
            for axis, value in enumerate((difficulty.max_count, difficulty.min_size)):
                self.difficulty[axis].fill_(value)  # a kernel's argument: no copy that the host would wait for
            graph, made = random.choice(lane.graphs)
            graph.replay()
            torch._foreach_copy_(list(self.stores[place]), list(made))
            self.made[place].record()

    def _refresh(self) -> None:
        if self.batches % _REFRESH_EVERY == 0:
            self.composer.bank.refresh(_STROKE)

    @torch.no_grad()
    def _make(self) -> Batch:
        scenes = self.composer(self.batch, self.difficulty)
        asked = [question for _ in range(ASKED) for question in self.maker(scenes)]
        return (scenes.pixels, *scenes.patches, *pack(asked, ASKED * self.maker.parts, ROOM))


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

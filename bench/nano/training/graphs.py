"""A function's kernels as one CUDA graph: launched one by one, those of a training step keep the host busy for longer
than the card.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_EAGER_CALLS = 3  # they compile, and make what a function makes only once, as an optimizer its moments


class Graphed(Generic[T]):
    """Calls a function of tensors whose shapes stay; on a card by replaying a graph, after a few calls without.

    What the function returns, and whatever else it leaves behind, has one place in memory: the next call overwrites it.
    """

    def __init__(self, function: Callable[..., T], device: torch.device) -> None:
        self._function, self._replays = function, device.type == "cuda"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: tuple[Tensor, ...] = ()
        self._made: T

    def __call__(self, *given: Tensor) -> T:
        self._calls += 1
        if not self._replays or self._calls <= _EAGER_CALLS:
            return self._function(*given)
        if self._graph is None:
            self._given = tuple(map(torch.empty_like, given))
            self._graph = torch.cuda.CUDAGraph()
            # Other threads of the process, such as NCCL's, go on calling CUDA.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._made = self._function(*self._given)
        if given:
            torch._foreach_copy_(list(self._given), list(given))
        self._graph.replay()
        return self._made

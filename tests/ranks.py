"""Shares of models for tests of tensor parallelism: checkpoints that ranks divide, and ranks that are threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.models.loading import ModelFiles
from photonlite.models.moondream import checkpoint
from photonlite.models.moondream.config import MoondreamConfig
from tests.tiny import GOLDEN, tiny_config, tiny_model

T = TypeVar("T")
GUARD = 60.0
"""Seconds after which a thread that waits for others in vain fails."""

DIVISIBLE: dict[str, dict[str, Any]] = {
    "text": {"dim": 32, "ff_dim": 40, "n_heads": 4, "n_kv_heads": 4},
    "vision": {"crop_size": 16, "enc_patch_size": 4, "proj_out_dim": 32},
    "region": {"dim": 32},
}
"""Sections of a configuration for 2 or 4 ranks."""


def divisible_config(kind: str = "moondream2", **text: Any) -> MoondreamConfig:
    return tiny_config(kind, **(DIVISIBLE | {"text": DIVISIBLE["text"] | text}))


def saved(config: MoondreamConfig, folder: Path, seed: int = 0) -> ModelFiles:
    """Write the weights of `tiny_model`, in float64."""
    path = folder / "model.safetensors"
    save_file(dict(tiny_model(config, seed).double().state_dict()), path)
    return ModelFiles("tiny", checkpoint, config, GOLDEN / "tokenizer.json", (path,), {})


class Exchange:
    """What threads tell each other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count, timeout=GUARD)
        self._values: list[Any] = [None] * count

    def all(self, rank: int, value: T) -> list[T]:
        """Give a value, and return those of all ranks."""
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


class ThreadGroup(RankGroup):
    """A rank that is a thread."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        super().__init__(rank, exchange.count)
        self._exchange = exchange

    def sum(self, x: Tensor) -> Tensor:
        return x.copy_(torch.stack(self._exchange.all(self.rank, x.clone())).sum(dim=0))

    def concat(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange.all(self.rank, x), dim=-1)

    def broadcast(self, x: Tensor) -> None:
        x.copy_(self._exchange.all(self.rank, x.clone())[0])


def on_ranks(count: int, work: Callable[[RankGroup], T]) -> list[T]:
    """Run a function as each rank, on threads, and return the results in the order of ranks."""
    exchange = Exchange(count)

    def run(rank: int) -> T:
        with torch.inference_mode():
            return work(ThreadGroup(rank, exchange))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))

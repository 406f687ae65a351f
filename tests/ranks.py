"""Shares of models for tests of tensor parallelism: checkpoints that ranks divide, and ranks that are threads."""

import os
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.models.checkpoint import load_files
from photonlite.models.loading import ModelFiles
from photonlite.models.moondream import checkpoint
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.request import Token
from photonlite.runner.ranks.follower import Follower
from photonlite.runner.ranks.leader import TeamModel
from photonlite.runner.ranks.memory import SharedMemory
from photonlite.runner.ranks.model import RankModel
from photonlite.runner.ranks.process import RankSetup, record
from photonlite.runner.ranks.team import Team
from tests.equality import Scene
from tests.guard import GUARD
from tests.tiny import CPU, GOLDEN, tiny_config, tiny_model

T = TypeVar("T")

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

    def abort(self) -> None:
        """Make all threads that wait raise."""
        self._barrier.abort()


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


class ThreadFollower(Follower):
    """Another rank on a thread of this process, whose failure fails what waits for it."""

    def __init__(self, setup: RankSetup, model: RankModel, memory: SharedMemory, exchange: Exchange) -> None:
        super().__init__(setup, model, memory)
        self._exchange = exchange

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException:
                traceback.print_exc()
                self._exchange.abort()

        self._device.compute.run(guarded)


class ThreadTeam(Team):
    """Other ranks on threads of this process: all of an engine on several ranks but processes and Gloo."""

    def __init__(self, files: ModelFiles, count: int) -> None:
        super().__init__(files, count, CPU, torch.float64, None)
        self.exchange = Exchange(count)
        self.ranks = ThreadGroup(0, self.exchange)
        self.followers: list[ThreadFollower] = []

    def start(self) -> None:
        self._open = [os.memfd_create(name) for name in ("store", "slots")]
        for rank in range(1, self.count):
            ranks = ThreadGroup(rank, self.exchange)
            loaded = load_files(self._files, device=CPU, dtype=torch.float64, ranks=ranks)
            model = RankModel(loaded.model, ranks)
            self.followers.append(ThreadFollower(self._setup(rank), model, self.memory, self.exchange))

    def connect(self) -> None: ...

    def send(self, name: str, *arguments: Any) -> None:
        method, given = pickle.loads(record(name, *arguments))
        for follower in self.followers:
            getattr(follower, method)(*given)

    def stop(self) -> None:
        for follower in self.followers:
            follower._device.close()
        self.followers.clear()
        super().stop()


class RankScene(Scene):
    """A scene of `tests.equality` whose engines have a divided model, while the oracle has the whole one."""

    def __init__(self, seed: int, count: int, model: TeamModel) -> None:
        super().__init__(seed, count)
        self.config = divisible_config()
        self._whole = tiny_model(self.config, seed).double()
        self.model: Any = model
        self.options["tensor_parallel"] = model.team.count

    def expected(self) -> list[tuple[Token, ...]]:
        divided, self.model = self.model, self._whole
        try:
            return super().expected()
        finally:
            self.model = divided


def on_ranks(count: int, work: Callable[[RankGroup], T]) -> list[T]:
    """Run a function as each rank, on threads, and return the results in the order of ranks."""
    exchange = Exchange(count)

    def run(rank: int) -> T:
        with torch.inference_mode():
            return work(ThreadGroup(rank, exchange))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))

"""A tiny model behind `VisionModel`, gates that block it at a call, and arguments for every skill."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.models.checkpoint import LoadedModel
from photonlite.models.moondream.config import MoondreamConfig
from tests.guard import GUARD
from tests.tiny import CPU, tiny_config, tiny_loaded

COORD = 5


def make_image(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


IMAGE = make_image(0)


def double(config: MoondreamConfig | None = None) -> LoadedModel:
    """Return a model in double precision, whose results do not depend on batch or cache."""
    loaded = tiny_loaded(config or tiny_config())
    loaded.model.text.lm_head.bias[COORD] += 3  # lists of several objects
    loaded.model.to(torch.float64)
    return loaded


NETWORKS: "weakref.WeakKeyDictionary[VisionModel, Any]" = weakref.WeakKeyDictionary()


def serve(loaded: LoadedModel | None = None, **engine: Any) -> VisionModel:
    loaded = loaded or double()
    model = VisionModel(loaded, CPU, torch.float64, engine=EngineConfig(**engine))
    NETWORKS[model] = loaded.model
    return model


def network(model: VisionModel) -> Any:
    """Return the network of a model, to block it or to count its calls."""
    return NETWORKS[model]


def settle(model: VisionModel) -> None:
    """Wait until all jobs of the image pool are done: when its threads meet, none has another job."""
    pool = model._session._pool
    threads = pool._threads._max_workers
    meeting = threading.Barrier(threads)
    for met in [pool.submit(partial(meeting.wait, GUARD)) for _ in range(threads)]:
        met.result(GUARD)


class Gate:
    """Blocks the n-th call of a method until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int = 1) -> None:
        self._work = getattr(owner, name)
        self._at = at
        self.calls = 0
        self._reached = threading.Event()
        self._open = threading.Event()
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self._at:
            self._reached.set()
            assert self._open.wait(GUARD)
        return self._work(*arguments, **options)

    def wait(self) -> None:
        assert self._reached.wait(GUARD)

    async def wait_async(self) -> None:
        await asyncio.to_thread(self.wait)

    def open(self) -> None:
        self._open.set()


def on_thread(work: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, GUARD))


def counters(model: VisionModel) -> dict[str, Any]:
    return dict(model.metrics()["counters"])


SKILLS = ["detect", "point", "segment", "caption", "query", "reason"]


def arguments(skill: str, image: Image.Image | None, settings: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {
        "detect": {"object": "mug"},
        "point": {"object": "mug", "spatial_refs": [(0.2, 0.3)]},
        "segment": {"object": "mug", "spatial_refs": [(0.2, 0.3)]},
        "caption": {"length": "short"},
        "query": {"question": "why?"},
        "reason": {"question": "why?", "reasoning": True},
    }
    return {"image": image, "settings": settings, **more[skill]}


def method(model: VisionModel, skill: str, prefix: str = "") -> Any:
    return getattr(model, prefix + {"reason": "query"}.get(skill, skill))

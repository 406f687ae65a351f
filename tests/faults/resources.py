"""What a model holds while it has nothing to do: the same before and after a fault."""

import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import psutil

from photonlite.api import VisionModel
from tests.serving import GUARD, settle


@dataclass(frozen=True)
class Resources:
    """Counts of a model at rest, and of this process."""

    pages: int  # neither free nor kept for later requests
    free_rows: int  # of the pending table
    encoded: int  # crops, features and embeddings of images on the device
    in_flight: int
    zombies: int
    open_requests: int
    prepared_bytes: int
    preparing: int
    threads: int
    files: int
    processes: int


_OF_THE_PROCESS = ("threads", "files", "processes")


def await_resources(model: VisionModel, before: Resources) -> None:
    """Wait until a model holds as much as before, and its process no more: its threads end after their last answer."""

    def is_back(found: Resources) -> bool:
        left = {name: min(getattr(found, name), getattr(before, name)) for name in _OF_THE_PROCESS}
        return found == replace(before, **left)

    until = time.monotonic() + GUARD
    while not is_back(found := resources(model)):
        assert time.monotonic() < until, (found, before)
        time.sleep(0.01)


def await_rest(model: VisionModel) -> None:
    """Wait until the engine has nothing to do and no thread of the image pool has a job."""
    engine, rested = model._session.engine, threading.Event()

    def look() -> None:
        core = engine._core
        if core.idle and not core.scheduler.running.zombies:
            rested.set()
        else:
            engine._loop.post(look)

    engine._loop.post(look)
    assert rested.wait(GUARD)
    settle(model)
    drained = threading.Event()
    engine._core.runner._device.compute.run(drained.set)  # type: ignore[attr-defined]
    assert drained.wait(GUARD)


def resources(model: VisionModel) -> Resources:
    """Return what a model holds once it is at rest."""
    await_rest(model)
    session, core = model._session, model._session.engine._core
    running, cache = core.scheduler.running, core.scheduler.cache
    stored: Any = core.runner._model_runner._images  # type: ignore[attr-defined]
    images = stored.inner
    return Resources(
        pages=cache.pages.usable - cache.pages.free - cache.prefix.idle_pages,
        free_rows=len(running.free_rows),
        encoded=sum(map(len, (images._crops, images._features, images._embeddings, stored._restored))),
        in_flight=len(core.in_flight),
        zombies=len(running.zombies),
        open_requests=len(session.open),
        prepared_bytes=session.gate.held,
        preparing=session.gate.waiting,
        threads=threading.active_count(),
        files=len(os.listdir("/proc/self/fd")),
        processes=len(psutil.Process().children()),
    )

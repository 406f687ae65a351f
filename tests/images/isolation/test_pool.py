import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from photonlite.config import ImageLimits
from photonlite.errors import (
    ImageBusyError,
    ImageError,
    ImageTimeoutError,
    ImageTooLargeError,
    ImageWorkerError,
    ModelError,
)
from photonlite.images.isolation import pool as module
from photonlite.images.isolation import process
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.isolation.process import DecodeProcess
from tests.guard import GUARD
from tests.images.bombs import BOMBS, noise, saved

GOOD = saved(noise(30, 20), "PNG")
SLOW = ImageLimits(decode_cpu_s=30.0)


@contextlib.contextmanager
def opened(limits: ImageLimits | None = None, workers: int = 1) -> Iterator[DecodePool]:
    pool = DecodePool(limits or ImageLimits(), workers)
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[DecodePool]:
    with opened(workers=2) as pool:
        yield pool


class Gate:
    """Keeps an image in a worker until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.free = threading.Event()

    def __call__(self, needed: int) -> None:
        self.reached.set()
        assert self.free.wait(GUARD)


def test_images_are_decoded_by_several_threads_at_once(shared: DecodePool) -> None:
    with ThreadPoolExecutor(8) as executor:
        assert {one.size for one in executor.map(shared.decode, [GOOD] * 40)} == {(30, 20)}
    assert (shared.jobs.waiting, shared.jobs.running) == (0, 0)


def test_images_are_decoded_first_come_first_served() -> None:
    order: list[int] = []
    gate = Gate()
    with opened() as pool, ThreadPoolExecutor(4) as executor:
        first = executor.submit(pool.decode, GOOD, gate)
        assert gate.reached.wait(GUARD)
        rest = []
        for number in range(3):
            rest.append(pool.submit(GOOD, lambda _, number=number: order.append(number)))
        assert pool.jobs.waiting == 3
        gate.free.set()
        assert first.result(GUARD).size == (30, 20)
        for job in rest:
            job.result(GUARD)
    assert order == [0, 1, 2]


def test_a_hostile_image_fails_alone() -> None:
    limits = ImageLimits(decode_cpu_s=0.1, decode_cpu_s_per_megapixel=0.001)
    bomb = BOMBS["jpeg_exif_segments"]()
    with opened(limits, workers=2) as pool, ThreadPoolExecutor(8) as executor:
        bombs = [executor.submit(pool.decode, bomb) for _ in range(4)]
        good = [executor.submit(pool.decode, GOOD) for _ in range(8)]
        assert [type(one.exception(GUARD)) for one in bombs] == [ImageTimeoutError] * 4
        assert [one.result(GUARD).size for one in good] == [(30, 20)] * 8


@pytest.mark.long
def test_slow_images_leave_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SLOW_S", 0.05)
    niced: list[int] = []
    set_priority = os.setpriority
    monkeypatch.setattr(os, "setpriority", lambda *a: niced.append(a[2]) or set_priority(*a))
    bomb = BOMBS["jpeg_empty_scans"]()
    with opened(SLOW) as pool:
        jobs = [pool.submit(bomb) for _ in range(module.MOST_SLOW)]
        assert pool.decode(GOOD).size == (30, 20)  # behind them in a pool of one worker
        assert not any(job.done() for job in jobs)
        assert niced == [10] * module.MOST_SLOW
        for job in jobs:
            assert job.cancel()
        assert pool.decode(GOOD).size == (30, 20)


def test_without_a_thread_to_spare_a_slow_image_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process, "SLOW_S", 0.05)
    with opened(ImageLimits(decode_cpu_s=0.5, decode_cpu_s_per_megapixel=0.001)) as pool:
        monkeypatch.setattr(pool, "start_thread", full)
        with pytest.raises(ImageTimeoutError):
            pool.decode(BOMBS["jpeg_empty_scans"]())
        assert pool.submit(GOOD).result(GUARD).size == (30, 20)


def test_a_worker_that_died_idle_is_replaced() -> None:
    with opened() as pool:
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the pool may have reaped it already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert pool.decode(GOOD).size == (30, 20)
        assert pool.pids != [pid]


def test_stopped_workers_are_replaced_before_they_get_an_image() -> None:
    with opened(workers=2) as pool:
        for pid in (pids := pool.pids):
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with ThreadPoolExecutor(2) as executor:
            assert {one.size for one in executor.map(pool.decode, [GOOD] * 4, timeout=GUARD)} == {(30, 20)}
        assert not set(pids) <= set(pool.pids)


def test_an_image_whose_worker_is_stopped_is_tried_once_more() -> None:
    stopped: list[int] = []

    def stop_once(needed: int) -> None:
        if not stopped:
            stopped.extend(pool.pids)
            os.kill(stopped[0], signal.SIGSTOP)

    with opened() as pool:
        assert pool.submit(GOOD, stop_once).result(GUARD).size == (30, 20)
        assert pool.pids != stopped


def test_an_image_whose_worker_was_killed_by_others_is_tried_once_more() -> None:
    with opened() as pool:
        killed: list[int] = []

        def kill_once(needed: int) -> None:
            if not killed:
                killed.extend(pool.pids)
                os.kill(killed[0], signal.SIGKILL)

        assert pool.decode(GOOD, kill_once).size == (30, 20)
        with pytest.raises(ImageWorkerError, match="killed"):
            pool.decode(GOOD, lambda _: [os.kill(pid, signal.SIGKILL) for pid in pool.pids] and None)


def test_cancelling_kills_a_worker_that_does_not_answer() -> None:
    stopped = threading.Event()
    with opened() as pool:
        (pid,) = pool.pids

        def stop(needed: int) -> None:
            os.kill(pid, signal.SIGSTOP)
            stopped.set()

        future = pool.submit(GOOD, stop)
        assert stopped.wait(GUARD)
        assert future.cancel()
        assert pool.submit(GOOD).result(GUARD).size == (30, 20)


@pytest.mark.long
def test_cancelling_a_task_frees_its_worker_at_once() -> None:
    async def main(pool: DecodePool) -> None:
        bomb, waits = (asyncio.ensure_future(pool.adecode(BOMBS["jpeg_empty_scans"]())) for _ in range(2))
        while not pool.jobs.running:
            await asyncio.sleep(0)
        waits.cancel()
        bomb.cancel()
        assert (await pool.adecode(GOOD)).size == (30, 20)
        for task in (bomb, waits):
            with pytest.raises(asyncio.CancelledError):
                await task

    with opened(SLOW) as pool:
        asyncio.run(main(pool))


def test_closing_fails_running_and_waiting_images_and_ends_every_process() -> None:
    gate = Gate()
    with opened(SLOW) as pool, ThreadPoolExecutor(2) as executor:
        running = executor.submit(pool.decode, BOMBS["jpeg_empty_scans"](), lambda _: gate.reached.set())
        assert gate.reached.wait(GUARD)
        waiting = pool.submit(GOOD)
        pids = pool.pids
        pool.close()
        for future in (running, waiting):
            assert isinstance(future.exception(GUARD), ModelError | ImageWorkerError)
        with pytest.raises(ModelError, match="closed"):
            pool.decode(GOOD)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_too_many_and_too_large_images_are_refused_before_they_wait(
    monkeypatch: pytest.MonkeyPatch, shared: DecodePool
) -> None:
    monkeypatch.setattr(shared.jobs, "_max_waiting", 0)
    with pytest.raises(ImageBusyError, match="1024 images wait"):
        shared.decode(GOOD)
    with opened(ImageLimits(max_bytes=10)) as pool, pytest.raises(ImageTooLargeError, match="10"):
        pool.decode(GOOD)


def test_a_worker_that_does_not_start_fails_the_pool_or_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(on_slow: Callable[[], None]) -> DecodeProcess:
        raise ImageWorkerError("the process that decodes images does not start: no room")

    monkeypatch.setattr(module, "DecodeProcess", broken)
    with pytest.raises(ImageWorkerError, match="no room"):
        DecodePool(ImageLimits(), 1)
    monkeypatch.setattr(module, "DecodeProcess", DecodeProcess)
    with opened() as pool:
        monkeypatch.setattr(module, "DecodeProcess", broken)
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises((ImageWorkerError, ImageError)):
            pool.decode(GOOD)
        monkeypatch.setattr(module, "DecodeProcess", DecodeProcess)
        assert pool.decode(GOOD).size == (30, 20)

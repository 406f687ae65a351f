"""A card for machines without one: lanes are host threads, and graphs are the work itself.

It rehearses every line but the CUDA calls. Its lanes have no SMs of their own, so its figures mean nothing.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from photonlite.tuning.lanes import Ended, Lane, Replay, play_together


class HostCard:
    """Lanes on the host; `sms` is a number for the table."""

    sms = 132

    def __init__(self) -> None:
        self._lanes: list[HostLane] = []

    def whole(self, *, first: bool = False) -> "HostLane":
        """See `Card.whole`."""
        return self._add(self.sms)

    def divided(self, sms: int) -> tuple["HostLane", "HostLane"]:
        """See `Card.divided`."""
        return self._add(sms), self._add(self.sms - sms)

    def run(self, queues: Sequence[tuple[Lane, Sequence[Replay]]]) -> list[list[float]]:
        """See `Card.run`."""
        return play_together(queues)

    def close(self) -> None:
        """See `Card.close`."""
        for lane in self._lanes:
            lane.close()

    def _add(self, sms: int) -> "HostLane":
        self._lanes.append(HostLane(sms))
        return self._lanes[-1]


class HostLane:
    """A thread that runs what it is given."""

    def __init__(self, sms: int) -> None:
        self.sms = sms
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bench-lane")

    def capture(self, work: Callable[[], object]) -> Replay:
        """See `Lane.capture`."""
        self._thread.submit(_run, work).result()
        return lambda: _run(work)

    def play(self, queue: Sequence[Replay], gate: threading.Barrier) -> "Future[Ended]":
        """See `Lane.play`."""
        return self._thread.submit(_play, queue, gate)

    def close(self) -> None:
        """See `Lane.close`."""
        self._thread.shutdown()


def _run(work: Callable[[], object]) -> None:
    with torch.inference_mode():
        work()


def _play(queue: Sequence[Replay], gate: threading.Barrier) -> Ended:
    gate.wait()
    begun, ends = time.perf_counter(), []
    try:
        for replay in queue:
            replay()
            ends.append(time.perf_counter() - begun)
    except BaseException:
        gate.abort()
        raise
    return begun, ends

"""Time that passes only when nothing else is left to do, and an engine that works in it."""

import asyncio
import math
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any

from photonlite.results import Answer
from photonlite.server.calls import Call
from tests.server.fake import FakeModel


class _Selector(selectors.SelectSelector):
    """Does not wait: lets the clock jump to the next timer instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and nothing will ever happen"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose hours take milliseconds."""

    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run_virtual(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in virtual time; `asyncio.get_running_loop().time` is the clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class EngineModel(FakeModel):
    """Works on all calls at a time, like a device that gets slower with each, and in the order in which they came.

    Attributes:
        batching: What a further call brings: 0 where the work of all takes as long as one after the other, 1 where it
            costs nothing.
        most: Calls that are worked on together; others wait in order.
    """

    def __init__(self, *, batching: float = 0.0, most: int = 8) -> None:
        super().__init__()
        self.batching = batching
        self.max_batch = most
        self._work = 0.0
        self._at = 0.0
        self._queue: list[tuple[asyncio.Future[None], float]] = []
        self._running: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, call: Call) -> Mapping[str, Any]:
        """Answer after so many seconds of work as the question says; raises TimeoutError at the deadline."""
        done = asyncio.get_running_loop().create_future()
        self._advance()
        self._queue.append((done, float(call.arguments["question"])))
        self._go_on()
        try:
            async with asyncio.timeout(call.deadline_s):
                await done
        finally:
            self._advance()
            self._queue = [waiting for waiting in self._queue if waiting[0] is not done]
            self._running.pop(done, None)
            self._go_on()
        return Answer("yes")

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        count = len(self._running)
        if count:
            self._work += (now - self._at) / (1 + (count - 1) * (1 - self.batching))
        self._at = now

    def _go_on(self) -> None:
        while self._queue and len(self._running) < self.max_batch:
            done, seconds = self._queue.pop(0)
            self._running[done] = self._work + seconds
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            count = len(self._running)
            left = max(0.0, min(self._running.values()) - self._work) * (1 + (count - 1) * (1 - self.batching))
            self._timer = asyncio.get_running_loop().call_later(left, self._finish)

    def _finish(self) -> None:
        self._advance()
        for done, end in list(self._running.items()):
            if end <= self._work + 1e-9 * max(1.0, math.fabs(end)):
                del self._running[done]
                if not done.done():
                    done.set_result(None)
        self._go_on()

"""The newest result, for threads and coroutines that read it or wait for a newer one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from photonlite.realtime.frames import FrameResult


class LatestResult:
    """Holds one result at a time. Any thread may call any method; `publish` never waits."""

    def __init__(self) -> None:
        self.newest: FrameResult | None = None
        self._changed = threading.Condition()
        self._bells: list[Callable[[], None]] = []
        self._published = 0
        self._closed = False

    def publish(self, result: FrameResult) -> None:
        with self._changed:
            self.newest = result
            self._published += 1
            self._wake()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._wake()

    def wait(self, seen: int) -> tuple[int, FrameResult] | None:
        """Wait until more than `seen` results were published; returns how many, and the newest; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._published > seen or self._closed)
            return self._after(seen)

    async def wait_async(self, seen: int) -> tuple[int, FrameResult] | None:
        rung, loop = asyncio.Event(), asyncio.get_running_loop()

        def ring() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(rung.set)

        with self._changed:
            if self._published > seen or self._closed:
                return self._after(seen)
            self._bells.append(ring)
        try:
            await rung.wait()
        finally:
            with self._changed:
                if ring in self._bells:
                    self._bells.remove(ring)
        return self._after(seen)

    def _after(self, seen: int) -> tuple[int, FrameResult] | None:
        return None if self.newest is None or self._published <= seen else (self._published, self.newest)

    def _wake(self) -> None:
        self._changed.notify_all()
        bells, self._bells = self._bells, []
        for ring in bells:
            ring()


class Results(Iterator[FrameResult], AsyncIterator[FrameResult]):
    """Newer and newer results, for `for` and for `async for`, until the loop is closed.

    A reader that is slower than the loop skips results: the next one is always the newest there is.

    Attributes:
        skipped: Results that were replaced before this iterator was asked for them.
    """

    def __init__(self, latest: LatestResult, with_age: Callable[[FrameResult], FrameResult]) -> None:
        self.skipped = 0
        self._latest = latest
        self._with_age = with_age
        self._seen = 0

    def __next__(self) -> FrameResult:
        if (found := self._latest.wait(self._seen)) is None:
            raise StopIteration
        return self._next(*found)

    def __aiter__(self) -> "Results":
        return self

    async def __anext__(self) -> FrameResult:
        if (found := await self._latest.wait_async(self._seen)) is None:
            raise StopAsyncIteration
        return self._next(*found)

    def _next(self, published: int, result: FrameResult) -> FrameResult:
        self.skipped += published - self._seen - 1
        self._seen = published
        return self._with_age(result)

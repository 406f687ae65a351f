"""The newest result, for whoever looks at it or waits for a newer one; threads and coroutines alike."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from photonlite.realtime.outcomes import FrameResult


class Board:
    """Shows one result at a time. Any thread may call any method; `show` never waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bells: list[Callable[[], None]] = []
        self._newest: FrameResult | None = None
        self._shown = 0
        self._closed = False

    @property
    def newest(self) -> FrameResult | None:
        """The last one that was shown."""
        return self._newest

    def show(self, result: FrameResult) -> None:
        """Replace the newest result, and tell whoever waits."""
        with self._changed:
            self._newest = result
            self._shown += 1
            self._tell()

    def close(self) -> None:
        """Nothing newer will come."""
        with self._changed:
            self._closed = True
            self._tell()

    def wait(self, seen: int) -> tuple[int, FrameResult] | None:
        """Wait until more than `seen` results have been shown; gives how many, and the newest. None: no more come."""
        with self._changed:
            self._changed.wait_for(lambda: self._shown > seen or self._closed)
            return self._after(seen)

    async def await_newer(self, seen: int) -> tuple[int, FrameResult] | None:
        """The same for coroutines."""
        rung = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ring() -> None:
            # An event loop that was closed meanwhile has nobody who waits.
            if not loop.is_closed():
                loop.call_soon_threadsafe(rung.set)

        with self._changed:
            if self._shown > seen or self._closed:
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
        return None if self._newest is None or self._shown <= seen else (self._shown, self._newest)

    def _tell(self) -> None:
        self._changed.notify_all()
        bells, self._bells = self._bells, []
        for ring in bells:
            ring()


class Results(Iterator[FrameResult], AsyncIterator[FrameResult]):
    """Newer and newer results, for `for` and for `async for`; ends when the loop is closed.

    Whoever is slower than the loop skips what was replaced meanwhile: the next one is always the newest there is.

    Args:
        board: Shows the results.
        handed_out: Brings a result's age up to date.

    Attributes:
        skipped: Results that were replaced before this iterator was asked for them.
    """

    def __init__(self, board: Board, handed_out: Callable[[FrameResult], FrameResult]) -> None:
        self.skipped = 0
        self._board = board
        self._handed_out = handed_out
        self._seen = 0

    def __next__(self) -> FrameResult:
        found = self._board.wait(self._seen)
        if found is None:
            raise StopIteration
        return self._take(*found)

    def __aiter__(self) -> "Results":
        return self

    async def __anext__(self) -> FrameResult:
        found = await self._board.await_newer(self._seen)
        if found is None:
            raise StopAsyncIteration
        return self._take(*found)

    def _take(self, shown: int, result: FrameResult) -> FrameResult:
        self.skipped += shown - self._seen - 1
        self._seen = shown
        return self._handed_out(result)

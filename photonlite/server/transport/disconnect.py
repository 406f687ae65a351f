"""Work that ends when its client goes away or its time is over, and never outlives the request."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from photonlite.errors import DeadlineError
from photonlite.server.backend import BackendStream
from photonlite.server.errors import CLIENT_CLOSED, HttpError

R = TypeVar("R")


class ClientWatch:
    """Looks whether a request's client is still there, and how much time is left.

    Args:
        request: Its body has been read; None for a client that somebody else watches.
        until: When the time is over, in seconds of the clock.
        clock: Gives seconds.
    """

    def __init__(self, request: Request | None, until: float, clock: Callable[[], float]) -> None:
        self._gone = None if request is None else asyncio.ensure_future(_disconnect(request))
        self._until = until
        self._clock = clock

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for work. Whatever ends the waiting early cancels it first.

        Raises:
            HttpError: The client went away.
            DeadlineError: The time is over.
        """
        if self._left:
            work.close()
            raise _left()
        task = asyncio.ensure_future(work)
        try:
            await self._wait(task)
            return task.result()
        finally:
            await _cancel(task)

    async def close(self) -> None:
        """Stop looking."""
        if self._gone is not None:
            await _cancel(self._gone)

    @property
    def _left(self) -> bool:
        return self._gone is not None and self._gone.done()

    async def _wait(self, task: "asyncio.Future[R]") -> None:
        events: list[asyncio.Future[Any]] = [task] if self._gone is None else [task, self._gone]
        left = max(0.0, self._until - self._clock())
        await asyncio.wait(events, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return
        if self._left:
            raise _left()
        raise DeadlineError("the answer was not complete in time: ask for less, or try again when less is open")


class WatchedStream:
    """Text as it comes, for as long as somebody is there to read it. The first piece is there before a response begins.

    Args:
        source: Gives the pieces.
        watch: Of the request.
        on_end: Called as soon as the source has no more to do; told as `answered` whether it has given everything.
    """

    def __init__(
        self, source: BackendStream, watch: ClientWatch, on_end: Callable[..., object] = lambda answered: None
    ) -> None:
        self._source = source
        self._watch = watch
        self._on_end = on_end
        self._first: list[str] = []
        self._ended = False

    @property
    def result(self) -> Mapping[str, Any]:
        """The answer; its `metrics` and `finish_reason` are None until the pieces have ended."""
        return self._source.result

    async def begin(self) -> None:
        """Wait for the first piece, or for what is wrong with the request."""
        try:
            self._first.append(await anext(self))
        except StopAsyncIteration:
            return
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> "WatchedStream":
        return self

    async def __anext__(self) -> str:
        if self._first:
            return self._first.pop()
        if self._ended:
            raise StopAsyncIteration
        piece = await self._watch.run(_next(self._source))
        if piece is None:
            self._ended = True
            self._on_end(answered=True)
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Give the rest up, and stop looking after the client."""
        await self._source.aclose()
        self._on_end(answered=False)
        await self._watch.close()


async def _next(source: BackendStream) -> str | None:
    # A task cannot end with StopAsyncIteration.
    async for piece in source:
        return piece
    return None


def _left() -> HttpError:
    return HttpError(CLIENT_CLOSED, "the client went away", code="client_closed")


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Future[R]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # it was looked at: nobody complains that it was not

"""Work that ends when its client disconnects or its deadline passes, and never outlives the request."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from photonlite.errors import DeadlineError
from photonlite.server.backend import BackendStream
from photonlite.server.errors import CLIENT_CLOSED, HttpError

R = TypeVar("R")


class ClientWatch:
    """Watches a request's client and its deadline, `until` in seconds of the clock.

    The request's body has been read; None watches no client.
    """

    def __init__(self, request: Request | None, until: float, clock: Callable[[], float]) -> None:
        self._gone = None if request is None else asyncio.ensure_future(_disconnect(request))
        self._until = until
        self._clock = clock

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for work; cancel it first if the wait ends early.

        Raises:
            HttpError: 499, the client went away.
            DeadlineError: The deadline has passed.
        """
        if self._left:
            work.close()
            raise _client_left()
        task = asyncio.ensure_future(work)
        try:
            events: list[asyncio.Future[Any]] = [task] if self._gone is None else [task, self._gone]
            left = max(0.0, self._until - self._clock())
            await asyncio.wait(events, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._left:
                raise _client_left()
            raise DeadlineError("the answer was not complete in time: ask for less, or try again when less is open")
        finally:
            await _cancel(task)

    async def close(self) -> None:
        """Stop watching."""
        if self._gone is not None:
            await _cancel(self._gone)

    @property
    def _left(self) -> bool:
        return self._gone is not None and self._gone.done()


class WatchedStream:
    """Pieces of streamed text, for as long as the client is connected.

    `on_end` is called as soon as the source has ended; its argument `answered` says whether it gave everything.
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
        """The answer; its `metrics` and `finish_reason` are None until the stream has ended."""
        return self._source.result

    async def begin(self) -> None:
        """Wait for the first piece, so that errors of the request are raised before a response begins."""
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
        piece = await self._watch.run(_next_piece(self._source))
        if piece is None:
            self._ended = True
            self._on_end(answered=True)
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Cancel the rest, and stop watching the client."""
        await self._source.aclose()
        self._on_end(answered=False)
        await self._watch.close()


async def _next_piece(source: BackendStream) -> str | None:
    async for piece in source:
        return piece
    return None  # a task cannot end with StopAsyncIteration


def _client_left() -> HttpError:
    return HttpError(CLIENT_CLOSED, "the client went away", code="client_closed")


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Future[R]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieve it, so that asyncio does not warn

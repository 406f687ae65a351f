"""Answers that end when their client disconnects or their deadline passes, and their server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from photonlite.errors import DeadlineError
from photonlite.server.errors import client_left, to_http
from photonlite.server.limits.limiter import Permit
from photonlite.server.transport.logs import log_unforeseen

R = TypeVar("R")


class ClientWatch:
    """Watches the client of a request whose body has been read, None for no client, and the deadline `until`."""

    def __init__(self, request: Request | None, until: float, clock: Callable[[], float]) -> None:
        self._gone = None if request is None else asyncio.ensure_future(_disconnect(request))
        self.until = until
        self._clock = clock

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for work; cancel it if the client goes away, 499, or the deadline passes, `DeadlineError`."""
        if self._left:
            work.close()
            raise client_left()
        task = asyncio.ensure_future(work)
        try:
            events: list[asyncio.Future[Any]] = [task] if self._gone is None else [task, self._gone]
            left = max(0.0, self.until - self._clock())
            await asyncio.wait(events, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._left:
                raise client_left()
            raise DeadlineError("the answer was not complete in time: ask for less, or try again when less is open")
        finally:
            await _cancel(task)

    async def close(self) -> None:
        if self._gone is not None:
            await _cancel(self._gone)

    @property
    def _left(self) -> bool:
        return self._gone is not None and self._gone.done()


class WatchedStream:
    """The text of a streamed result; `on_end(True)` is called at its end, `on_end(False)` whenever it is closed.

    The result's `metrics` and `finish_reason` are None until the text has ended.
    """

    def __init__(
        self, result: Mapping[str, Any], watch: ClientWatch, on_end: Callable[[bool], object] = lambda answered: None
    ) -> None:
        self.result = result
        self._text = next(value for key, value in result.items() if key in ("caption", "answer"))
        self._watch = watch
        self._on_end = on_end
        self._first: list[str] = []
        self._ended = False

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
        piece = await self._watch.run(_next_piece(self._text))
        if piece is None:
            self._ended = True
            self._on_end(True)
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        await self._text.aclose()
        self._on_end(False)
        await self._watch.close()


class EventResponse(StreamingResponse):
    """Sends events, then closes their stream and the permit however it ends; `events` handle the stream's errors."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], stream: WatchedStream, permit: Permit) -> None:
        # A proxy must not gather events before it passes them on.
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events
        self._stream = stream
        self._permit = permit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.stream_response(send)  # the stream itself watches for a disconnect
        finally:
            try:
                await self._events.aclose()
                await self._stream.aclose()
            finally:
                self._permit.close()


def event(data: Mapping[str, Any] | str) -> bytes:
    """Return one event; a mapping becomes one line of JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"data: {text}\n\n".encode()


def failure_event(error: Exception, scope: Scope) -> bytes:
    """Return the event for an error that ends a stream after its response has begun; an unforeseen one is logged."""
    failure = to_http(error)
    scope.setdefault("state", {})["error_code"] = failure.code
    log_unforeseen("a stream failed", error, failure, scope)
    return event(failure.body)


async def _next_piece(text: AsyncIterator[str]) -> str | None:
    async for piece in text:
        return piece
    return None  # a task cannot end with StopAsyncIteration


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Future[R]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieve it, so that asyncio does not warn

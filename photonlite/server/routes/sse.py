"""Server-sent events: answers that are sent while they are generated."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from photonlite.server.errors import UNFORESEEN, to_http
from photonlite.server.limits.limiter import Permit
from photonlite.server.transport.disconnect import WatchedStream
from photonlite.server.transport.logs import LOGGER


def event(data: Mapping[str, Any] | str) -> bytes:
    """Return one event; a mapping becomes one line of JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"data: {text}\n\n".encode()


def failure_event(error: Exception) -> bytes:
    """Return the event for an error that ends a stream after its response has begun; an unforeseen one is logged."""
    failure = to_http(error)
    if failure.status == UNFORESEEN:
        LOGGER.error("a stream failed", exc_info=error)
    return event(failure.body)


class EventResponse(Response):
    """Sends events as they come, and closes their stream and the request's permit however that ends.

    `events` are made from the stream and handle what it raises; closing an unfinished stream cancels its request.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], stream: WatchedStream, permit: Permit) -> None:
        self.background = None
        self.status_code = 200
        # A proxy must not gather events before it passes them on.
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events
        self._stream = stream
        self._permit = permit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            try:
                await self._events.aclose()
                await self._stream.aclose()
            finally:
                self._permit.close()

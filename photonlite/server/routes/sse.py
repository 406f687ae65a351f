"""Server-sent events: answers that are sent while they are generated."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from photonlite.server.errors import to_http
from photonlite.server.limits.limiter import Permit
from photonlite.server.transport.disconnect import WatchedStream
from photonlite.server.transport.logs import log_unforeseen


def event(data: Mapping[str, Any] | str) -> bytes:
    """Return one event; a mapping becomes one line of JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"data: {text}\n\n".encode()


def failure_event(error: Exception) -> bytes:
    """Return the event for an error that ends a stream after its response has begun; an unforeseen one is logged."""
    failure = to_http(error)
    log_unforeseen("a stream failed", error, failure)
    return event(failure.body)


class EventResponse(StreamingResponse):
    """Sends events as they come, and closes their stream and the request's permit however that ends.

    `events` are made from the stream and handle what it raises; closing an unfinished stream cancels its request.
    """

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

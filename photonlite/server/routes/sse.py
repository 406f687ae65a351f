"""Server-sent events: answers that are sent while they are made."""

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
    """Write one event; a mapping becomes one line of JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"data: {text}\n\n".encode()


def failure_event(error: Exception) -> bytes:
    """Write the error that ends a stream after its response has begun; what nobody foresaw is logged as well."""
    failure = to_http(error)
    if failure.status == UNFORESEEN:
        LOGGER.error("a stream failed", exc_info=error)
    return event(failure.body)


class EventResponse(Response):
    """Sends events as they come.

    However that ends, the pieces are closed, which cancels what is not done, and the permit gives its place back.

    Args:
        events: Each from `event`; they handle what the pieces raise.
        pieces: Where they come from.
        permit: Of the request.
        headers: More headers.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        pieces: WatchedStream,
        permit: Permit,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # A proxy that gathers events before it passes them on would make a stream pointless.
        self.background = None
        self.status_code = 200
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        self._events = events
        self._pieces = pieces
        self._permit = permit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            try:
                await self._events.aclose()
                await self._pieces.aclose()
            finally:
                self._permit.close()

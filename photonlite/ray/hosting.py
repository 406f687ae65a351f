"""An ASGI application asked by messages instead of connections: what a replica runs, for an ingress elsewhere.

```
ingress                              replica
answer(scope, body)          ──>     application(scope, receive, send)
     <── batches of messages ──      everything that was sent since the last batch
connect(scope, connection)   ──>     the same for a WebSocket
     <── batches of messages ──
push(connection, message)    ──>     the next message that the application receives
```
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope

# What the routes read of a scope, of those parts that another process can have.
_CARRIED: Final = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers"),
    *("client", "server", "subprotocols", "extensions"),
)
_GONE: Final[Message] = {"type": "websocket.disconnect", "code": 1006}


class UnknownConnectionError(Exception):
    """A message came for a WebSocket that is not open here: it has ended, or was opened at another replica."""


def carried_scope(scope: Scope, request_id: str) -> dict[str, Any]:
    """Return a scope without what belongs to one process; the request keeps its id."""
    return {name: scope[name] for name in _CARRIED if name in scope} | {"state": {"request_id": request_id}}


class HostedApp:
    """Runs an application for requests that come as data; belongs to one event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[str, asyncio.Queue[Message]] = {}

    async def answer(self, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
        """Answer a request whose whole body came; closing the generator tells the application that the client left."""
        received: asyncio.Queue[Message] = asyncio.Queue()
        received.put_nowait({"type": "http.request", "body": body, "more_body": False})
        try:
            async for batch in self._run(scope, received.get):
                yield batch
        finally:
            received.put_nowait({"type": "http.disconnect"})

    async def connect(self, scope: Scope, connection: str) -> AsyncGenerator[list[Message], None]:
        """Serve a WebSocket, which receives what is pushed under the name of its connection."""
        received = self._connections[connection] = asyncio.Queue()
        received.put_nowait({"type": "websocket.connect"})
        try:
            async for batch in self._run(scope, received.get):
                yield batch
        finally:
            del self._connections[connection]
            received.put_nowait(_GONE)

    def push(self, connection: str, message: Message) -> None:
        if connection not in self._connections:
            raise UnknownConnectionError("the WebSocket is not open at this replica")
        self._connections[connection].put_nowait(message)

    async def _run(self, scope: Scope, receive: Receive) -> AsyncGenerator[list[Message], None]:
        sent: asyncio.Queue[Message | None] = asyncio.Queue()

        async def run() -> None:
            try:
                await self._app(scope, receive, _sender(sent))
            finally:
                sent.put_nowait(None)

        task = self._start(run())
        ended = False
        while not ended:
            batch = [await sent.get()]
            with suppress(asyncio.QueueEmpty):
                while True:
                    batch.append(sent.get_nowait())
            ended = batch[-1] is None
            if messages := [message for message in batch if message is not None]:
                yield messages
        await task  # raises what the application raised

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run to its end what goes on a moment longer than its generator: the application's answer to a disconnect."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not warn


def _sender(sent: "asyncio.Queue[Message | None]") -> Callable[[Message], Coroutine[Any, Any, None]]:
    async def send(message: Message) -> None:
        sent.put_nowait(message)

    return send

"""Talks to an ASGI application without a network: what is sent, when the client leaves, what came back."""

import asyncio
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message

Headers = dict[str, str]


class Exchange:
    """One request on its way.

    Attributes:
        messages: What the application has sent so far.
        asked: How often it has asked for the body, or for whether the client is still there.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: bytes | Sequence[bytes] | None,
        headers: Headers,
        method: str = "POST",
        client: str = "127.0.0.1",
    ) -> None:
        self.messages: list[Message] = []
        self.asked = 0
        self._chunks = [body] if isinstance(body, bytes) else list(body or ())
        self._gone = asyncio.Event()
        self._news = asyncio.Condition()
        parts = urlsplit(path)
        names = {"host": "localhost", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in names.items()],
            "client": (client, 5000),
            "server": ("localhost", 2020),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    def leave(self) -> None:
        """The client disconnects."""
        self._gone.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true that what the application sends makes true."""
        async with self._news:
            await self._news.wait_for(true)

    async def finish(self) -> "Exchange":
        await self.task
        return self

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> Headers:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the error."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "code"}
        assert all(isinstance(value, str) and value for value in error.values())
        return str(error["code"])

    async def _receive(self) -> Message:
        self.asked += 1
        if self._chunks:
            return {"type": "http.request", "body": self._chunks.pop(0), "more_body": bool(self._chunks)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        async with self._news:
            self.messages.append(message)
            self._news.notify_all()


async def post(app: ASGIApp, path: str, body: object, headers: Headers | None = None, **more: Any) -> Exchange:
    """Send a request and wait for all of the answer. A dictionary goes as JSON."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    kind = {"content-type": "application/json"} if isinstance(body, dict) else {}
    assert data is None or isinstance(data, bytes | Sequence)
    return await Exchange(app, path, data, {**kind, **(headers or {})}, **more).finish()

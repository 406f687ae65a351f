"""Middleware that times every request and WebSocket, logs its line and counts it."""

import asyncio
import contextlib
import time
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from photonlite.server.config import ServerConfig
from photonlite.server.errors import CLIENT_CLOSED, HttpError
from photonlite.server.ingress import request_id
from photonlite.server.limits.callers import check_key
from photonlite.server.metrics import UNMATCHED, HttpMetrics
from photonlite.server.transport.logs import log
from photonlite.server.usage import tokens_of


class AccessLog:
    """Logs and counts what an application answers.

    A request that the server gives up while it stops is answered with 503 here.

    Args:
        app: Answers.
        config: Tells whose key is known.
        http: Counts.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, http: HttpMetrics) -> None:
        self._app = app
        self._config = config
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request or WebSocket on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        self._http.began()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if exchange.status is not None or scope["type"] != "http":
                raise
            headers = {"X-Request-ID": request_id(scope)}
            message = "the server stopped before the answer was complete: ask another one"
            error = HttpError(503, message, code="stopped", headers=headers)
            await error.response()(scope, receive, exchange.send)
        finally:
            self._write(scope, exchange)

    def _write(self, scope: Scope, exchange: "Exchange") -> None:
        seconds = time.perf_counter() - exchange.begun
        is_http = scope["type"] == "http"
        status = exchange.status or (CLIENT_CLOSED if exchange.gone else 500)
        route = _route(scope)
        key, tokens = self._fingerprint(scope), tokens_of(scope)
        duration = seconds if is_http else None
        self._http.ended(route, status, duration, exchange.received, exchange.sent, key, tokens)
        more = {} if not is_http or (exchange.complete and not exchange.gone) else {"complete": False}
        log(
            "request" if is_http else "websocket",
            id=request_id(scope),
            method=_method(scope),
            route=route,
            status=status,
            ms=round(seconds * 1000, 2),
            bytes_in=exchange.received,
            bytes_out=exchange.sent,
            tokens_in=tokens[0],
            tokens_out=tokens[1],
            client=scope["client"][0] if scope.get("client") else None,
            key=key,
            **more,
        )

    def _fingerprint(self, scope: Scope) -> str | None:
        with contextlib.suppress(HttpError):
            tenant = check_key(HTTPConnection(scope), self._config)
            return None if tenant is None else tenant[:8]
        return None


class Exchange:
    """One request or WebSocket as it passes.

    Attributes:
        begun: When, in seconds of `time.perf_counter`.
        status: Of the response; None before it begins. 101 for an accepted WebSocket.
        received: Bytes of the body or of frames.
        sent: Bytes of the body or of frames.
        gone: Whether the client went away before the answer was complete.
        complete: Whether the whole answer was handed over, be it to nobody.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun = time.perf_counter()
        self.status: int | None = None
        self.received = 0
        self.sent = 0
        self.gone = False
        self.complete = False
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """Pass on what the client sent."""
        message = await self._receive()
        self.gone |= message["type"] == "http.disconnect" and not self.complete
        self.received += _size(message)
        return message

    async def send(self, message: Message) -> None:
        """Pass on what the application answers."""
        kind = message["type"]
        if kind.endswith("response.start") or kind == "websocket.accept":
            self.status = message.get("status", 101)
        elif kind == "websocket.close" and self.status is None:
            self.status = 403
        await self._send(message)
        self.sent += _size(message)
        self.complete |= kind.endswith("response.body") and not message.get("more_body", False)


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or "")


def _method(scope: Scope) -> str:
    method = str(scope.get("method", "GET"))  # a WebSocket begins as a GET
    return method if method in _METHODS else "(other)"


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "path", None) or UNMATCHED

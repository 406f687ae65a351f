"""Middleware around every route: the log line and its id, and errors as JSON."""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from photonlite.server.config import ServerConfig
from photonlite.server.errors import CLIENT_CLOSED, HttpError, to_http
from photonlite.server.limits.callers import WrongKeyDelay, check_host, key_id
from photonlite.server.metrics import UNMATCHED, HttpMetrics
from photonlite.server.transport.logs import log, log_unforeseen
from photonlite.server.transport.spans import RequestSpan, RequestSpans
from photonlite.server.transport.trace_context import ID_HEADER, log_fields, request_id

_INTERNAL_ERROR: Final = 1011  # close code of a WebSocket whose handler failed
_LINGER_S: Final = 2.0  # seconds for which a client whose request was refused may go on sending it
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class AccessLog:
    """Logs and counts requests and gives responses their ids; one cancelled by the server's stop is answered 503."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, http: HttpMetrics, spans: RequestSpans | None = None
    ) -> None:
        self._app = app
        self._config = config
        self._http = http
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # of ASGI servers other than ours
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        started = time.perf_counter()
        span = None if self._spans is None else self._spans.begin(scope, _method(scope))
        self._http.began()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if exchange.status is not None or scope["type"] != "http":
                raise
            error = HttpError(503, "the server stopped before the answer was complete: ask another one", code="stopped")
            await error.response()(scope, receive, exchange.send)
        finally:
            self._write(scope, exchange, time.perf_counter() - started, span)

    def _write(self, scope: Scope, exchange: "_Exchange", seconds: float, span: RequestSpan | None) -> None:
        is_http = scope["type"] == "http"
        status = exchange.status or (CLIENT_CLOSED if exchange.gone else 500)
        route: Any = getattr(scope.get("route"), "path", None) or UNMATCHED
        method = _method(scope)
        tokens = scope["state"].get("tokens", (0, 0))
        key, code = key_id(HTTPConnection(scope), self._config), scope["state"].get("error_code")
        counted = seconds if is_http else None
        self._http.ended(route, status, counted, exchange.received, exchange.sent, key, code, tokens)
        more = {} if not is_http or (exchange.complete and not exchange.gone) else {"complete": False}
        log(
            "request" if is_http else "websocket",
            **log_fields(scope),
            method=method,
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
            **({} if code is None else {"code": code}),
        )
        if span is not None:
            span.end(method, route, status, tokens)


class ErrorResponses:
    """Answers with the error that a route raised, as JSON; a WebSocket is refused with it, or closed."""

    def __init__(self, app: ASGIApp, config: ServerConfig, wrong_keys: WrongKeyDelay | None = None) -> None:
        self._app = app
        self._config = config
        self._wrong_keys = wrong_keys or WrongKeyDelay()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            if scope["type"] != "lifespan":
                check_host(HTTPConnection(scope), self._config)
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            failure = to_http(error)
            log_unforeseen("a request failed", error, failure, scope)
            if failure.code == "invalid_api_key":
                try:
                    await self._wrong_keys.wait(HTTPConnection(scope))
                except HttpError as too_many:
                    failure = too_many
            await exchange.refuse(failure)


class _Exchange:
    """Messages of one request or WebSocket, as they pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status: int | None = None  # 101 for an accepted WebSocket
        self.received = self.sent = 0  # bytes of bodies and frames
        self.read = False  # whether the request's body has been read
        self.gone = False  # whether the client disconnected before the answer was complete
        self.complete = False  # whether the whole answer was sent
        self._id = request_id(scope)
        self._scope = scope
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        self.read |= message["type"] != "http.request" or not message.get("more_body", False)
        self.gone |= message["type"] == "http.disconnect" and not self.complete
        self.received += _size(message)
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind.endswith("response.start") or kind == "websocket.accept":
            self.status = message.get("status", 101)
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers[ID_HEADER] = self._id
            headers["X-Content-Type-Options"] = "nosniff"
        elif kind == "websocket.close" and self.status is None:
            self.status = 403
        await self._send(message)
        self.sent += _size(message)
        self.complete |= kind.endswith("response.body") and not message.get("more_body", False)

    async def refuse(self, failure: HttpError) -> None:
        self._scope["state"]["error_code"] = failure.code
        if self._scope["type"] == "websocket" and self.status is None:
            await WebSocket(self._scope, self._receive, self.send).send_denial_response(failure.response())
        elif self._scope["type"] == "websocket":
            await self._send({"type": "websocket.close", "code": _INTERNAL_ERROR, "reason": failure.code})
        elif self.status is None:
            await failure.response()(self._scope, self._receive, self._send_lingering)
        elif failure.status != CLIENT_CLOSED:
            # Break the connection: a response that ended normally would be taken for a complete one.
            raise RuntimeError("a response broke off") from failure

    async def _send_lingering(self, message: Message) -> None:
        """Send a response, and end it after the whole request: a reset would keep the client from reading it."""
        expects = Headers(scope=self._scope).get("expect")  # such a client sends nothing unless told to
        if message["type"] != "http.response.body":
            if not expects:
                await self._read_for(0.0)
            if not self.read:
                MutableHeaders(scope=message)["Connection"] = "close"  # so that the rest need not be parsed
            await self.send(message)
            return
        if self.read or expects:
            await self.send(message)
            return
        await self.send({**message, "more_body": True})
        await self._read_for(_LINGER_S)
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_for(self, seconds: float) -> None:
        """Read the request to its end, or for so long; with 0 what has arrived already."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.read:
                    await self.receive()


def _method(scope: Scope) -> str:
    """Return the method of a request, for logs; a WebSocket begins as a GET."""
    method = str(scope.get("method", "GET"))
    return method if method in _METHODS else "(other)"


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or "")

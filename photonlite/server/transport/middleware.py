"""What goes back to clients, around every route: errors as JSON, and the id of the request."""

import asyncio
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from photonlite.server.errors import CLIENT_CLOSED, UNFORESEEN, HttpError, to_http
from photonlite.server.ingress import request_id
from photonlite.server.transport.logs import LOGGER

_INTERNAL_ERROR: Final = 1011
"""Of WebSocket's close codes."""

_LINGER_S: Final = 2.0
"""How long a client whose request was refused may go on sending it."""
_HEADED: Final = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class ErrorResponses:
    """Answers with the error that a route raised, as JSON; a WebSocket is refused with it, or closed.

    Args:
        app: The routes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            failure = to_http(error)
            if failure.status == UNFORESEEN:
                LOGGER.error("a request failed", exc_info=error, extra={"fields": {"id": request_id(scope)}})
            await exchange.refuse(failure)


class _Exchange:
    """A connection as it passes: whether its request has been read, and its response begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._begun = False
        self._read = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._read |= message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        self._begun = True
        await self._send(message)

    async def refuse(self, failure: HttpError) -> None:
        if self._scope["type"] == "websocket":
            await self._refuse_websocket(failure)
        elif not self._begun:
            await failure.response()(self._scope, self._receive, self._send_lingering)
        elif failure.status != CLIENT_CLOSED:
            # A response that ends like any other would pass for a whole one: this breaks the connection.
            raise RuntimeError("a response broke off") from failure

    async def _refuse_websocket(self, failure: HttpError) -> None:
        if self._begun:
            await self._send({"type": "websocket.close", "code": _INTERNAL_ERROR, "reason": failure.code})
        else:
            await WebSocket(self._scope, self._receive, self._send).send_denial_response(failure.response())

    async def _send_lingering(self, message: Message) -> None:
        """Send all of a response, and end it when the client has sent all of its request.

        A server that closes while the client still sends resets the connection, and the client, which reads when it has
        sent everything, would never see the response.
        """
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        expects = Headers(scope=self._scope).get("expect")  # such a client sends nothing unless told to
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self._read and not expects:
                    await self.receive()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class ResponseHeaders:
    """Gives every response the id of its request, and keeps browsers from guessing types.

    Args:
        app: What is inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        identity = request_id(scope)

        async def head(message: Message) -> None:
            if message["type"] in _HEADED:
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = identity
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, head)

"""WebSockets: paced, counted against the memory of open requests, and refused in the form of other errors."""

import asyncio
from collections.abc import Generator
from http import HTTPStatus
from typing import Any, Final, cast

from starlette.requests import HTTPConnection
from starlette.types import Scope
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request, Response

from photonlite.server.errors import HttpError
from photonlite.server.limits.callers import Caller, caller_of
from photonlite.server.limits.limiter import Shares
from photonlite.server.transport.pacing import PLAIN_BYTES, PacedConnection
from photonlite.server.transport.trace_context import ID_HEADER, sane_id

# Close codes.
_NO_UTF8: Final = 1007
_TRY_LATER: Final = 1013

_MESSAGE: Final = 16  # units of a message for the application
_UNIT_CHARACTERS: Final = 128  # of a text, which take one more
_LIBRARY: Final = "Failed to open a WebSocket connection: "  # how its refusals begin


class SocketConnection(PacedConnection, WebSocketsSansIOProtocol):
    """A WebSocket; pieces count against `max_open_bytes` when they arrive, whole messages in the application."""

    _arriving = 0  # bytes of memory
    _awaited = 0  # bytes of the part of a frame that is being read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._caller = Caller(self.network)
        self._read_exact, send = self.conn.reader.read_exact, self.conn.send_response
        self.conn.reader.read_exact = self._await_exact  # type: ignore[method-assign]
        self.conn.send_response = lambda response: send(self._identified(response))  # type: ignore[method-assign]

    def _await_exact(self, n: int) -> Generator[None, None, bytearray]:
        self._awaited = n
        return self._read_exact(n)

    @property
    def step_bytes(self) -> int:
        """What is left of a large frame holds no other ones."""
        return max(super().step_bytes, min(PLAIN_BYTES, self._awaited - len(self.conn.reader.buffer)))

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._caller = caller_of(HTTPConnection(cast(Scope, self.scope)), self.config.limits)
            self.payer = self._caller.id

    def _identified(self, response: Response) -> Response:
        """Add the request id to the response to a handshake, and make a refusal of the library's own JSON."""
        if ID_HEADER not in response.headers:  # else the application has made it
            given = self.request.headers.get_all(ID_HEADER) if self.handshake_initiated else []
            response.headers[ID_HEADER] = id = sane_id([value.encode("latin-1") for value in given])
            if self.handshake_initiated and response.status_code >= HTTPStatus.BAD_REQUEST:
                error = _refusal(response)
                scope = {"type": "websocket", "path": self.request.path.partition("?")[0], "headers": []}
                self.config.refused(error, id, scope | {"client": self.client})
                ours = error.response()
                response.status_code, response.reason_phrase = error.status, HTTPStatus(error.status).phrase
                response.body = bytes(ours.body)
                for name, value in ours.headers.items():
                    del response.headers[name]
                    response.headers[name] = value
        return response

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self.take(data)  # at once: the caller asks whether it could be read
            return
        size = 2 * len(data)  # joining the pieces of a message copies them
        if not self._memory.take(self._caller, size, self._arriving):
            self.conn.fail(_TRY_LATER, "there is no memory for the message now (max_open_bytes): try again later")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            return
        self._arriving += size
        super().data_received(data)

    @property
    def may_read(self) -> bool:
        return not self.read_paused

    @property
    def may_parse(self) -> bool:
        return super().may_parse and self.handshake_complete

    def take(self, data: bytes) -> None:
        WebSocketsSansIOProtocol.data_received(self, data)

    def handle_events(self) -> None:
        self.spend(len(self.conn.events))
        super().handle_events()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; text that is not UTF-8 closes the connection (1007), without uvicorn's traceback."""
        self.spend(_MESSAGE)
        if self.curr_msg_data_type == "text":
            self.spend(sum(map(len, self.frames)) // _UNIT_CHARACTERS)
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(_NO_UTF8, "a text message is no UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        message = await super().receive()
        self._release()  # what is parsed of the next message is less than a step
        self.go_on()
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # else uvicorn logs each refused handshake as an error
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._received = b""
        self._release()
        super().connection_lost(exc)

    def _release(self) -> None:
        left = 2 * len(self._received)
        self._memory.give(self._caller, self._arriving - left)
        self._arriving = left

    @property
    def _memory(self) -> Shares:
        memory: Shares = self.config.app.state.ingress.limiter.bytes
        return memory


def _refusal(response: Response) -> HttpError:
    if response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:  # the application was cancelled, or has not begun
        return HttpError(503, "the server stopped before the WebSocket was open: ask another one", "stopped")
    reason = response.body.decode().partition("\n")[0].removeprefix(_LIBRARY).rstrip(".")
    return HttpError(response.status_code, f"this opens no WebSocket: {reason}", "invalid_handshake")

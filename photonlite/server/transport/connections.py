"""Connections with deadlines, and reserved ones for probes; an address may hold its share (`may_hold`).

| what a connection waits for | limit | then |
|---|---|---|
| the headers of its first or next request | `header_timeout_s` | 408, closed |
| the rest of a body whose answer has been sent | `body_timeout_s` | closed |
| that the client reads what it was sent | `send_timeout_s` | dropped |
| the headers, beyond `max_connections` | 1 s, of the last 16 such connections | 503, closed |
| a sign of life of the client's machine | TCP keepalive and `TCP_USER_TIMEOUT` | dropped by the kernel |

Beyond `max_connections`, 16 connections are reserved and answer only probes. The oldest that has not sent a request is
closed for a newer one: a probe gets through a flood. `Ingress` limits the time of bodies and answers.
"""

import asyncio
import math
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Literal, cast

import h11
import uvicorn
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.limits.callers import caller_of
from photonlite.server.limits.limiter import may_hold
from photonlite.server.transport.pacing import PLAIN_BYTES, STEP_BYTES, PacedConnection, Pacer
from photonlite.server.transport.shedding import whole_request
from photonlite.server.transport.sockets import SocketConnection
from photonlite.server.transport.trace_context import ID_HEADER, new_id, request_id

MAX_HEADER_BYTES = 32 * 1024  # limit of headers in pieces; a block that arrives at once may be a little longer
MAX_HEADERS: Final = 128
_MANY_LINES: Final = re.compile(rb"(?:(?!\r?\n)[^\n]*+\n){%d}" % (MAX_HEADERS + 2))  # none of them blank

# Units of the pacer; of a request more, half for a header and one for so many bytes of headers and target.
_CONNECTION: Final = 16
_REQUEST: Final = 64
_KNOWN_REQUEST: Final = 24  # of a caller that may ask: its shares and rates bound the rest
_SHED: Final = 8
_REFUSED: Final = 16  # bytes that are read only to be dropped
_CHUNK: Final = 2
_UNIT_BYTES: Final = 32

PROBES: Final = ("/health", "/ready", "/metrics")  # paths that are answered however many connections are open
_ACCEPTED_TOGETHER: Final = 16
_RESERVED: Final = 16
_RESERVE_S: Final = 1.0  # seconds in which a reserved connection must send headers
_PACED_S: Final = 1.0  # seconds until a deadline of what waits to be parsed is checked again


def join_reserve(reserve: dict[Any, None], connection: Any) -> None:
    """Add a connection; if there are too many, refuse the oldest silent one, or this one if there is none."""
    reserve[connection] = None
    if len(reserve) > _RESERVED:
        silent = next((one for one in reserve if one.is_silent), connection)
        del reserve[silent]
        silent.refuse_crowd()


Refused = Callable[[HttpError, str, Scope], None]  # called with request id and scope of what the application never saw


def probes_only(app: ASGIApp, refusal: HttpError, refused: Refused) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") in PROBES:
            await app(scope, receive, send)
            return
        id = request_id(scope)
        refused(refusal, id, scope)
        response = refusal.response()
        response.headers[ID_HEADER] = id
        await response(scope, receive, send)

    return answer


def too_many(held: int, limit: int, mine: int) -> HttpError:
    """Return the refusal of a connection beyond the limit, or beyond the share of its address, which has `mine`."""
    message = f"{held} of {limit} connections are open, {mine} of them from your address: close some, or try later"
    return HttpError(503, message, code="too_many", headers={"Connection": "close"}, limit="max_connections")


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings and ours.

    `refused` is called for each request that is refused before it reaches the application. `refusal` returns the error
    of a request for which there is no room, before its body is parsed, or None.
    """

    def __init__(
        self,
        app: Any,
        limits: ServerConfig,
        refused: Refused,
        refusal: Callable[[HTTPConnection], HttpError | None] = lambda _: None,
    ) -> None:
        self.limits = limits
        self.refused = refused
        self.refusal = refusal
        self.pacer = Pacer()
        self.reserve: dict[HttpConnection, None] = {}  # connections beyond the limit, in the order in which they came
        super().__init__(
            app,
            loop="asyncio",
            http=HttpConnection,
            ws=SocketConnection,
            ws_max_size=limits.max_body_bytes,
            ws_per_message_deflate=False,  # images are compressed already
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # any client could claim any address
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=math.ceil(limits.header_timeout_s),
            # asyncio tries to accept so many at a time and, without file descriptors, logs each failure once a second.
            backlog=_ACCEPTED_TOGETHER,
        )


class _Flow(FlowControl):
    """uvicorn's flow control, which would read on although requests wait to be parsed."""

    def __init__(self, connection: "HttpConnection") -> None:
        super().__init__(connection.transport)
        self._connection = connection

    def resume_reading(self) -> None:
        self.read_paused = False
        self._connection.go_on()


class _Parser(h11.Connection):
    """Counts the units of its events, and refuses requests of very many headers without parsing those."""

    units = 0
    in_chunks = False
    refused = False  # whether what arrives is the rest of a body in chunks whose request was refused

    @property
    def plain_bytes(self) -> int:
        """Bytes of a body that come before its next message."""
        if self.their_state is not h11.SEND_BODY:
            return 0
        return int(getattr(self._reader, "_bytes_in_chunk", 0)) if self.in_chunks else PLAIN_BYTES

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE or getattr(self._reader, "_reading_trailer", False):
            head = self.trailing_data[0]
            if head.count(b"\n") > MAX_HEADERS and _MANY_LINES.match(head):
                raise h11.RemoteProtocolError("too many headers", error_status_hint=431)
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            size = sum(len(value) for _, value in event.headers)
            self.units += len(event.headers) // 2 + size // _UNIT_BYTES
        if isinstance(event, h11.Request):
            self.units += len(event.target) // _UNIT_BYTES
            self.in_chunks = any(name == b"transfer-encoding" for name, _ in event.headers)
        elif isinstance(event, h11.Data) and event.chunk_start:
            self.units += _CHUNK
        return event

    def send(self, event: Any) -> Any:
        if isinstance(event, h11.Response) and (b"connection", b"close") in event.headers:
            self.refused = self.in_chunks and self.their_state is h11.SEND_BODY
        return super().send(event)


class HttpConnection(PacedConnection, H11Protocol):
    """An HTTP connection with deadlines, and refusals in the form of the server's other errors."""

    conn: _Parser
    _crowd: HttpError | None = None
    _awaited: Literal["headers", "rest of the body"] | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.conn, self.flow = _Parser(h11.SERVER, MAX_HEADER_BYTES), _Flow(self)
        self.spend(_CONNECTION, paced=False)
        limit = self.config.limits.max_connections
        mine = sum(other.network == self.network for other in self.connections)
        held = len(self.connections) - len(self.config.reserve)
        free = limit - held
        if free < 0 or not (mine == 1 or may_hold(mine, free)):
            self._crowd = too_many(held - 1, limit, mine - 1)
            self.app = probes_only(self.app, self._crowd, self.config.refused)
        self._await("headers")
        if self._crowd is not None:
            join_reserve(self.config.reserve, self)

    @property
    def may_read(self) -> bool:
        return not self.flow.read_paused

    @property
    def may_parse(self) -> bool:
        return super().may_parse and self.conn.their_state is not h11.DONE  # then a request is being answered

    @property
    def step_bytes(self) -> int:
        return max(STEP_BYTES, min(PLAIN_BYTES, self.conn.plain_bytes))

    def take(self, data: bytes) -> None:
        if self.conn.refused:
            self.spend(_REFUSED)
            return
        whole = data + self._received
        if self._shed(whole):
            self._received = b""
            self.spend(_SHED)
            return
        H11Protocol.data_received(self, data)
        self._update_deadline()

    def handle_events(self) -> None:
        """Handle events, and charge them to the caller of the request that has begun with them."""
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            caller = caller_of(HTTPConnection(cast(Scope, self.scope)), self.config.limits)
            self.payer = caller.id
            self.conn.units += _REQUEST if caller.tenant is None and self.config.limits.api_keys else _KNOWN_REQUEST
        units, self.conn.units = self.conn.units, 0
        self.spend(units)

    def _shed(self, data: bytes) -> bool:
        """Refuse a plain request that has arrived whole and has no place; the connection then waits for the next one.

        A client that does not read what it was sent must not be sent more: its requests go the usual way, which waits.
        """
        between = self.conn.our_state is self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if not between or self._crowd is not None or self._unread is not None or self.transport.is_closing():
            return False
        scope = whole_request(data)
        error = None if scope is None else self.config.refusal(HTTPConnection(scope | {"client": self.client}))
        if scope is None or error is None:
            return False
        id = request_id(cast(Scope, scope))
        self.config.refused(error, id, scope | {"client": self.client})
        answer = error.response()
        answer.headers.update({ID_HEADER: id, "X-Content-Type-Options": "nosniff"})
        lines = (b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *answer.raw_headers))
        status = b"HTTP/1.1 %d %b\r\n" % (error.status, HTTPStatus(error.status).phrase.encode())
        self.transport.write(b"".join((status, *lines, b"\r\n", answer.body)))
        self._await(None)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        return True

    def on_response_complete(self) -> None:
        rest = self.conn.trailing_data[0]
        if rest and self.conn.our_state is self.conn.their_state is h11.DONE:  # further requests wait for the pacer
            self.conn, self._received = _Parser(h11.SERVER, MAX_HEADER_BYTES), rest + self._received
        super().on_response_complete()
        self.payer = self.network  # until the key of the next request is known
        if self.conn.their_state is not h11.IDLE:  # else uvicorn's timer runs until the next request's first byte
            self._update_deadline()
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        self.config.reserve.pop(self, None)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.conn.units += _REQUEST
        id = request_id(cast(Scope, self.scope))
        if self._crowd is not None:
            self._refuse(self._crowd, id)
            return
        super().handle_websocket_upgrade(event)
        socket = cast(SocketConnection, self.transport.get_protocol())
        if not (socket.handshake_initiated or self.transport.is_closing()):  # uvicorn would neither answer nor close
            socket.close_sent = True  # nothing else is sent when the server stops
            message = "A request for a WebSocket has no body, and no line beyond 8 KiB"
            self._refuse(HttpError(400, message, "invalid_http"), id)
        elif rest := self.conn.trailing_data[0] + self._received:  # frames sent before the answer
            self._received = b""
            socket.data_received(rest)

    @property
    def is_silent(self) -> bool:
        return self.cycle is None

    def refuse_crowd(self) -> None:
        if self._crowd is not None:
            self._refuse(self._crowd)

    def send_400_response(self, msg: str) -> None:
        cause = sys.exception()
        if isinstance(cause, h11.RemoteProtocolError) and cause.error_status_hint == 431:
            limit = f"there are more than {MAX_HEADERS} headers, or {MAX_HEADER_BYTES // 1024} KiB of them"
            self._refuse(HttpError(431, f"{limit}: send text in the body", "headers_too_large"))
        else:
            message = msg.rstrip(".").lower().capitalize() + ": it is not HTTP/1.1"
            self._refuse(HttpError(400, message, "invalid_http"))

    def _update_deadline(self) -> None:
        """Set the deadline of what the connection waits for; uvicorn's keep-alive timer ends with the first byte."""
        state = None if self.transport.is_closing() else self.conn.their_state
        answered = self.cycle is not None and self.cycle.response_complete
        if state is h11.IDLE:
            self._await("headers")
        else:
            self._await("rest of the body" if state is h11.SEND_BODY and answered else None)

    def _await(self, awaited: Literal["headers", "rest of the body"] | None) -> None:
        if awaited == self._awaited:
            return  # the deadline stays: single bytes do not extend it
        if self._deadline is not None:
            self._deadline.cancel()
        limits: ServerConfig = self.config.limits
        seconds = limits.header_timeout_s if awaited == "headers" else limits.body_timeout_s
        seconds = min(seconds, _RESERVE_S) if self._crowd is not None else seconds
        self._awaited = awaited
        self._deadline = self.loop.call_later(seconds, self._give_up) if awaited else None

    def _give_up(self) -> None:
        if self._crowd is not None:
            self.refuse_crowd()
        elif self.waits:  # what is missing may have arrived
            self._deadline = self.loop.call_later(_PACED_S, self._give_up)
        elif self._awaited == "headers" and (self._received or self.conn.trailing_data[0]):
            seconds = self.config.limits.header_timeout_s
            message = f"the headers took longer than {seconds:g} seconds: send them at once"
            self._refuse(HttpError(408, message, "header_timeout", limit="header_timeout_s"))
        elif self._awaited == "headers":
            self.transport.close()  # a browser's spare connection: nothing was sent
        else:
            self.transport.abort()

    def _refuse(self, error: HttpError, id: str | None = None) -> None:
        """Answer in the place of the application, and close; without an id, to a request that was not understood."""
        self._await(None)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            id = id or new_id()
            error.headers |= {"Connection": "close", ID_HEADER: id}
            refusal = error.response()
            start = h11.Response(status_code=error.status, headers=refusal.raw_headers)
            self.config.refused(error, id, {"type": "http", "headers": [], "client": self.client})
            for event in (start, h11.Data(data=bytes(refusal.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

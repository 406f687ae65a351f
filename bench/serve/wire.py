"""A light HTTP/1.1 client: requests that are written beforehand, over connections that are kept, on raw transports.

It shares the machine with the server that it measures, so it does nothing that need not be done: replies are not parsed
beyond their length and status.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
BROKEN: Final = 0
"""In the place of a status, for a connection that ended before its reply did."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request.

    Attributes:
        status: Of HTTP, or `BROKEN`.
        began: When the request was written, in seconds of `time.perf_counter`.
        first: When the first byte of the reply's body was there.
        ended: When all of it was.
        body: As it came: a stream with its chunks' frames.
    """

    status: int
    began: float
    first: float
    ended: float
    body: bytes


class Client:
    """Connections to one server; as many as there are requests at a time.

    Args:
        host: Address of the server.
        port: Its port.

    Attributes:
        opened: Connections opened so far.
    """

    def __init__(self, host: str, port: int) -> None:
        self.opened = 0
        self._host = host
        self._port = port
        self._idle: list[_Connection] = []

    async def ask(self, request: bytes) -> Reply:
        """Send a request, and wait for all of the reply.

        Args:
            request: Head and body.
        """
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                break
        else:
            self.opened += 1
            loop = asyncio.get_running_loop()
            try:
                _, connection = await loop.create_connection(_Connection, self._host, self._port)
            except OSError:
                now = time.perf_counter()
                return Reply(BROKEN, now, now, now, b"")
        reply = await connection.ask(request)
        self._idle.append(connection)  # one that is lost, now or while it waits, is left out when its turn comes
        return reply

    def close(self) -> None:
        """Close the connections that wait."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection, and the reply that it waits for."""

    def __init__(self) -> None:
        self.lost = False
        self._transport: asyncio.WriteTransport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._data = bytearray()
        self._began = 0.0
        self._first = 0.0
        self._body = 0
        """Where the body begins; 0 as long as the head is not complete."""
        self._length: int | None = None

    def ask(self, request: bytes) -> "asyncio.Future[Reply]":
        assert self._transport is not None
        self._data.clear()
        self._body, self._length, self._first = 0, None, 0.0
        self._reply = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(request)
        return self._reply

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._body:
            end = self._data.find(_END)
            if end < 0:
                return
            self._body = end + len(_END)
            found = _LENGTH.search(self._data, 0, end)
            self._length = None if found is None else int(found[1])
        if not self._first and len(self._data) > self._body:
            self._first = time.perf_counter()
        if self._length is None:
            # No event of a stream ends like the frame behind the last one.
            complete = self._data.endswith(_LAST_CHUNK)
        else:
            complete = len(self._data) >= self._body + self._length
        if complete:
            self._finish(int(self._data[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._finish(BROKEN)

    def _finish(self, status: int) -> None:
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            now = time.perf_counter()
            reply.set_result(Reply(status, self._began, self._first or now, now, bytes(self._data[self._body :])))

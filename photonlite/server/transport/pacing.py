"""Divides the event loop's time for parsing, since a message costs the same however few bytes it has.

What a connection receives is parsed in steps, when `Pacer` says so. Units, about 5 microseconds of work each, are
charged to the payer: a key, or an address until the key is known. A payer that has used more than its allowance is read
more slowly, not refused; the timeouts of headers and bodies end what takes too long. Next among its connections is the
one that has used least (start-time fair queueing: Goyal, Vin and Cheng, 1996): many connections get no more than one,
and a probe does not wait until a flood ends.
"""

import asyncio
import heapq
import itertools
from typing import Any, Final

from photonlite.server.limits.callers import network_of

RATE: Final = 20_000  # units of a payer in a second
BURST_S: Final = 0.25  # seconds' worth of units that a payer may use at once
ROUND: Final = 512  # units of all payers in a round of the event loop
READ_BYTES: Final = 16 * 1024  # at once
STEP_BYTES: Final = 2 * 1024
PLAIN_BYTES: Final = 256 * 1024  # of what holds no messages: read at once, and parsed in one step
_READ: Final = 4  # units
_PAYERS: Final = 4096  # after so many, those that owe nothing are forgotten


class _Payer:
    def __init__(self) -> None:
        self.paid_at = 0.0  # time of the loop at which it owes nothing any more
        self.virtual = 0.0  # units at which the connection began that was served last
        self.waiting: list[tuple[float, int, PacedConnection]] = []  # a heap by units used
        self.queued = False  # in the pacer's heap, or being served

    @property
    def due(self) -> float:
        return self.paid_at - BURST_S

    def serve(self) -> float:
        """Let the connection that has used least parse a step; returns its units, at least 1."""
        used, _, connection = heapq.heappop(self.waiting)
        connection.waits, self.virtual = False, max(self.virtual, used)
        connection.step()
        return max(1.0, connection.used - used)


class Pacer:
    """Tells connections when to parse; belongs to one event loop."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(PLAIN_BYTES))  # all connections read into it
        self._payers: dict[str, _Payer] = {}
        self._waiting: list[tuple[float, int, _Payer]] = []  # a heap by the time at which a payer was due
        self._numbers = itertools.count()
        self._wake: asyncio.TimerHandle | None = None

    def charge(self, name: str, units: int, *, paced: bool = True) -> None:
        """Charge a payer; work that is done without waiting uses up its allowance, and makes no debts."""
        payer, now = self._payer(name), asyncio.get_running_loop().time()
        owed = max(payer.paid_at, now) + units / RATE
        payer.paid_at = owed if paced else max(payer.paid_at, min(owed, now + BURST_S))

    def join(self, connection: "PacedConnection") -> None:
        """Have a connection parse a step once its payer's allowance permits it."""
        if not connection.waits:
            payer = self._payer(connection.payer)
            connection.used = max(connection.used, payer.virtual) if connection.line is payer else payer.virtual
            connection.waits, connection.line = True, payer
            heapq.heappush(payer.waiting, (connection.used, next(self._numbers), connection))
            if not payer.queued:
                self._queue(payer)

    def _queue(self, payer: _Payer) -> None:
        payer.queued = True
        heapq.heappush(self._waiting, (payer.due, next(self._numbers), payer))
        self._wake_up()

    def _payer(self, name: str) -> _Payer:
        if name not in self._payers and len(self._payers) >= _PAYERS:
            now = asyncio.get_running_loop().time()
            self._payers = {key: one for key, one in self._payers.items() if one.paid_at > now or one.waiting}
        return self._payers.setdefault(name, _Payer())

    def _wake_up(self) -> None:
        if self._waiting and (self._wake is None or self._wake.when() > self._waiting[0][0]):
            if self._wake is not None:
                self._wake.cancel()
            self._wake = asyncio.get_running_loop().call_at(self._waiting[0][0], self._round)

    def _round(self) -> None:
        """Let connections parse that are due, until the round is over."""
        self._wake, now, left = None, asyncio.get_running_loop().time(), float(ROUND)
        try:
            while left > 0 and self._waiting and self._waiting[0][0] <= now:
                payer = heapq.heappop(self._waiting)[-1]
                try:
                    if payer.due <= now:  # else it has been charged meanwhile
                        left -= payer.serve()
                finally:
                    payer.queued = False
                    if payer.waiting:
                        self._queue(payer)
        finally:
            self._wake_up()


class PacedConnection(asyncio.BufferedProtocol):
    """Parses in steps and drops a client that does not read; a mixin before one of uvicorn's protocols."""

    config: Any  # a LimitedConfig; uvicorn declares its base class
    connections: Any  # all open connections of this class
    client: tuple[str, int] | None
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    network: str
    payer: str
    used = 0.0  # units, since that of the payer's connections which has used least
    waits = False  # for the pacer
    line: _Payer | None = None  # by which `used` counts
    _received = b""  # not parsed yet
    _ended = False  # whether the client sends no more
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Whatever the kernel does not take at once counts as unread, so that the deadline covers all of it.
        transport.set_write_buffer_limits(high=0)  # type: ignore[attr-defined]
        super().connection_made(transport)
        self.network = self.payer = network_of(self.client)

    @property
    def may_read(self) -> bool:
        """Whether the application permits that more is read."""
        raise NotImplementedError

    @property
    def may_parse(self) -> bool:
        return self.may_read and self._unread is None and not self.transport.is_closing()

    @property
    def step_bytes(self) -> int:
        return STEP_BYTES

    def take(self, data: bytes) -> None:
        """Hand bytes to uvicorn's protocol."""
        raise NotImplementedError

    def spend(self, units: int, *, paced: bool = True) -> None:
        self.used += units
        self.config.pacer.charge(self.payer, units, paced=paced)

    def step(self) -> None:
        """Parse a step of what was received; a failure ends the connection."""
        try:
            if self.may_parse:
                size = self.step_bytes
                data, self._received = self._received[:size], self._received[size:]
                self.spend(1)
                self.take(data)
            self.go_on()
        except Exception:
            self.transport.abort()
            raise

    def go_on(self) -> None:
        """Have the rest of what was received parsed, if that may be, or read more."""
        if self._received:
            self.transport.pause_reading()
            if self.may_parse:
                self.config.pacer.join(self)
        elif self._ended:
            self.loop.call_soon(self.transport.close)  # after the first step of what answers
        elif self.may_read:
            self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self.config.pacer.buffer
        return buffer[: max(READ_BYTES, self.step_bytes)]

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.config.pacer.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        more, self._received = bool(self._received), self._received + data
        self.spend(_READ, paced=False)
        if more or not self.may_parse:
            self.transport.pause_reading()
        else:
            self.config.pacer.join(self)

    def eof_received(self) -> Any:
        """Return whether the connection stays open: until what was received is parsed."""
        self._ended = self.waits
        return self._ended

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.config.limits.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._received = b""
        self._stop_unread()
        super().connection_lost(exc)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

"""What is open at a time: requests and sockets that are accepted and not answered, and the bytes that they hold.

A request holds a place among uploads until its body is there, and then one among open requests, so that slow uploads
keep nobody from asking. A WebSocket holds a place among sockets. Each kind of place is divided between callers, and so
are the bytes: see `shares`.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from photonlite.server.errors import HttpError
from photonlite.server.limits.callers import Caller
from photonlite.server.limits.shares import Shares


class Permit:
    """One accepted request, and what it holds. Leaving its block gives its place back, unless a response keeps it.

    Args:
        places: Where the place and the bytes are counted.
        room: Where it has its place.
        id: Of the request.
        admitted: When, in seconds of the ingress's clock.
        caller: Who asks: what is computed for one tenant serves no other.

    Attributes:
        id: Of the request, for its response and the log.
        admitted: When, in seconds of the ingress's clock.
        caller: Who asks.
    """

    def __init__(self, limiter: "RequestLimiter", room: Shares, id: str, admitted: float, caller: Caller) -> None:
        self.id = id
        self.admitted = admitted
        self.caller = caller
        self._limiter = limiter
        self._room = room
        self._bytes = 0
        self._kept = False
        self._closed = False

    @property
    def cache_salt(self) -> str | None:
        """The tenant; None without keys."""
        return self.caller.tenant

    def enter(self) -> None:
        """Take a place among open requests, now that the body is there.

        Raises:
            HttpError: 429, the caller has its share of places.
        """
        limiter = self._limiter
        if self._room is limiter.uploads:
            limiter.take_place(limiter.requests, self.caller)
            limiter.uploads.give(self.caller)
            self._room = limiter.requests

    def charge(self, size: int) -> None:
        """Hold so many bytes more, to the end of the request.

        Raises:
            HttpError: 413 if no server of this size could hold them, 429 if open requests hold too many now.
        """
        self._limiter.take_bytes(self.caller, size, self._bytes)
        self._bytes += size

    def release(self, size: int) -> None:
        """Hold so many bytes less."""
        if not self._closed:
            self._bytes -= size
            self._limiter.bytes.give(self.caller, size)

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold so many bytes more while a block runs; raises as `charge` does."""
        self.charge(size)
        try:
            yield
        finally:
            self.release(size)

    def keep(self) -> None:
        """Let a response hold the place beyond the handler's block; it calls `close` once it is sent."""
        self._kept = True

    def close(self) -> None:
        """Give the place and the bytes back; closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._limiter.bytes.give(self.caller, self._bytes)
            self._room.give(self.caller)
            self._limiter.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None or not self._kept:
            self.close()


class RequestLimiter:
    """Counts what is open. Belongs to one event loop.

    Args:
        most: Open requests, and as many uploads.
        most_sockets: Open WebSockets.
        most_bytes: Of all of them together.
        retry_s: Says in how many seconds a caller should ask again that has its share.

    Attributes:
        open: Requests and sockets that have a place.
        uploads: Places of requests whose bodies are on their way.
        requests: Places of the other requests.
        sockets: Places of WebSockets.
        bytes: What all of them hold.
    """

    def __init__(self, most: int, most_sockets: int, most_bytes: int, retry_s: Callable[[Caller], int]) -> None:
        self.open = 0
        self.uploads = Shares("uploads", most)
        self.requests = Shares("requests", most)
        self.sockets = Shares("sockets", most_sockets)
        self.bytes = Shares("bytes", most_bytes)
        self._retry_s = retry_s
        self._empty = asyncio.Event()
        self._empty.set()

    def begin(self, caller: Caller, id: str, now: float, *, socket: bool) -> Permit:
        """Admit a request whose body has not been read, or a WebSocket.

        Raises:
            HttpError: 429, the caller has its share of places.
        """
        if not socket and not self.requests.has_room(caller):
            raise self._no_place(self.requests, caller)
        room = self.sockets if socket else self.uploads
        self.take_place(room, caller)
        self.open += 1
        self._empty.clear()
        return Permit(self, room, id, now, caller)

    def take_place(self, room: Shares, caller: Caller) -> None:
        """Take a place; raises as `begin` does."""
        if not room.take(caller):
            raise self._no_place(room, caller)

    def leave(self) -> None:
        """Count a permit that has been closed."""
        self.open -= 1
        if not self.open:
            self._empty.set()

    def take_bytes(self, caller: Caller, size: int, own: int) -> None:
        """Count bytes of a request that holds some already.

        Raises:
            HttpError: 413 if the request is over the limit alone, 429 if the caller has its share.
        """
        most = self.bytes.capacity
        if own + size > most:
            raise HttpError(
                413,
                f"the request takes {own + size} bytes once decoded, over the limit of {most}: shrink it",
                code="request_too_large",
                limit="max_open_bytes",
            )
        if not self.bytes.take(caller, size, own):
            reason = f"open requests hold {self.bytes.used} of {most} bytes, yours {self.bytes.held(caller)} of them"
            raise self._busy(reason, "memory_full", caller, "max_open_bytes")

    async def settled(self) -> None:
        """Wait until nothing is open."""
        await self._empty.wait()

    def _no_place(self, room: Shares, caller: Caller) -> HttpError:
        reason = f"{room.used} of {room.capacity} {room.name} are open, {room.held(caller)} of them yours"
        return self._busy(reason, "queue_full", caller, "max_sockets" if room is self.sockets else "max_open")

    def _busy(self, reason: str, code: str, caller: Caller, limit: str) -> HttpError:
        seconds = self._retry_s(caller)
        message = f"the server is busy ({reason}): try again in {seconds} s"
        return HttpError(429, message, code=code, headers={"Retry-After": str(seconds)}, limit=limit)

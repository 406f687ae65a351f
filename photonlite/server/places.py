"""How much is open at a time: requests that are accepted and not answered, and the bytes that they hold."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from photonlite.server.errors import HttpError

RETRY_S = 1
"""What Retry-After says where nobody knows when a place comes free."""


class Ticket:
    """One accepted request, and what it holds. Leaving its block gives its place back, unless a response keeps it.

    Args:
        places: Where the place and the bytes are counted.
        id: Of the request.
        admitted: When, in seconds of the ingress's clock.
        tenant: Stands for the caller's key: what is computed for one tenant serves no other; None without keys.
        caller: Who asks: the tenant, or an address.

    Attributes:
        id: Of the request, for its response and the log.
        admitted: When, in seconds of the ingress's clock.
        salt: The tenant.
        caller: As given.
    """

    def __init__(self, places: "Places", id: str, admitted: float, tenant: str | None, caller: str) -> None:
        self.id = id
        self.admitted = admitted
        self.salt = tenant
        self.caller = caller
        self._places = places
        self._bytes = 0
        self._kept = False
        self._closed = False

    def charge(self, size: int) -> None:
        """Hold so many bytes more, to the end of the request.

        Raises:
            HttpError: 413 if no server of this size could hold them, 429 if others hold too many now.
        """
        self._places.take_bytes(size)
        self._bytes += size

    def release(self, size: int) -> None:
        """Hold so many bytes less."""
        if not self._closed:
            self._places.give_bytes(size)
            self._bytes -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold so many bytes more while a block runs; raises as `charge` does."""
        self._places.take_bytes(size)
        try:
            yield
        finally:
            self._places.give_bytes(size)

    def keep(self) -> None:
        """Let a response hold the place beyond the handler's block; it calls `close` once it is sent."""
        self._kept = True

    def close(self) -> None:
        """Give the place back; closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._places.give_bytes(self._bytes)
            self._places.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None or not self._kept:
            self.close()


class Places:
    """Counts what is open. Belongs to one event loop.

    Args:
        most: Requests at a time.
        most_bytes: Of all of them together.

    Attributes:
        open: Requests that have a place.
        bytes: What they hold.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.open = 0
        self.bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """Take a place.

        Raises:
            HttpError: 429, all are taken.
        """
        if self.open >= self._most:
            raise _busy(f"{self.open} requests are open, the limit", "queue_full", "max_open")
        self.open += 1
        self._empty.clear()

    def leave(self) -> None:
        """Give a place back."""
        self.open -= 1
        if not self.open:
            self._empty.set()

    def take_bytes(self, size: int) -> None:
        """Count bytes.

        Raises:
            HttpError: 413 if they alone are over the limit, 429 if they are together with those of others.
        """
        if size > self._most_bytes:
            raise HttpError(
                413,
                f"the request takes {size} bytes once decoded, over the limit of {self._most_bytes}: shrink it",
                code="request_too_large",
                limit="max_open_bytes",
            )
        if self.bytes + size > self._most_bytes:
            raise _busy(f"open requests hold {self.bytes} of {self._most_bytes} bytes", "memory_full", "max_open_bytes")
        self.bytes += size

    def give_bytes(self, size: int) -> None:
        """Count them no more."""
        self.bytes -= size

    async def settled(self) -> None:
        """Wait until nothing is open."""
        await self._empty.wait()


def _busy(reason: str, code: str, limit: str) -> HttpError:
    message = f"the server is busy ({reason}): try again later"
    return HttpError(429, message, code=code, headers={"Retry-After": str(RETRY_S)}, limit=limit)

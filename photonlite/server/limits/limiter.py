"""Limits on open requests, uploads, WebSockets and their memory, divided between callers."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from photonlite.server.config import ServerConfig
from photonlite.server.errors import CLIENT_CLOSED, HttpError
from photonlite.server.limits.callers import Caller

_GREED: Final = 7  # how many times the free part a caller may hold: alone, seven eighths of the resource
_CALLERS: Final = 10_000  # callers whose rate is remembered; the one that has been silent longest is forgotten first


def may_hold(held: int, free: int, weight: float = 1.0) -> bool:
    """Whether a caller may hold `held` units while `free` are left; `weight` is relative to the largest of all holders.

    Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
    1998): one caller alone uses nearly everything, and every further caller leaves less free.
    """
    return held <= _GREED * weight * free


class Shares:
    """A resource with a capacity in units, and how much of it each caller holds."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.used = 0
        self._held: dict[str, int] = {}
        self._weights: dict[str, float] = {}

    def held(self, caller: Caller) -> int:
        return self._held.get(caller.id, 0)

    def has_room(self, caller: Caller, size: int = 1, own: int = 0) -> bool:
        """Whether a caller may take more: all that is free if it holds only `own`, what this request has already."""
        free = self.capacity - self.used - size
        held = self.held(caller)
        if held == own:
            return free >= 0
        largest = max(caller.weight, max(self._weights.values()))
        return may_hold(held + size, free, caller.weight / largest)

    def take(self, caller: Caller, size: int = 1, own: int = 0) -> bool:
        if not self.has_room(caller, size, own):
            return False
        if size:
            self._held[caller.id] = self.held(caller) + size
            self._weights[caller.id] = caller.weight
            self.used += size
        return True

    def give(self, caller: Caller, size: int = 1) -> None:
        self.used -= size
        left = self.held(caller) - size
        if left:
            self._held[caller.id] = left
        else:
            self._held.pop(caller.id, None)
            self._weights.pop(caller.id, None)


class RateLimit:
    """A token bucket for each caller: so many requests at once, refilled evenly within a minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, caller: Hashable, count: int = 1) -> float:
        """Count requests, at most a minute's; returns 0 if they may be made, else the seconds until they may."""
        now = self._clock()
        tokens, since = self._buckets.pop(caller, (float(self._per_minute), now))
        tokens = min(float(self._per_minute), tokens + (now - since) * self._per_minute / 60)
        granted = tokens >= count
        self._buckets[caller] = (tokens - count if granted else tokens, now)
        if len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if granted else (count - tokens) * 60 / self._per_minute


class Permit:
    """An admitted request and its memory; leaving the block closes it, unless `keep` left that to the response."""

    def __init__(self, limiter: "RequestLimiter", room: Shares, id: str, admitted: float, caller: Caller) -> None:
        self.id = id
        self.admitted = admitted  # by the ingress's clock
        self.caller = caller
        self._limiter = limiter
        self._room = room
        self._bytes = 0
        self._kept = False
        self._closed = False

    def enter(self) -> None:
        """Move from uploads, which keep no open request out, to open requests; raises 429."""
        limiter = self._limiter
        if self._room is limiter.uploads:
            limiter.take_place(limiter.requests, self.caller)
            limiter.uploads.give(self.caller)
            self._room = limiter.requests

    def charge(self, size: int) -> None:
        """Hold so many more bytes until the request ends; raises 413 if they can never fit, 429 if not now."""
        shared, wanted = self._limiter.bytes, self._bytes + size
        if wanted > shared.capacity:
            reason = f"the request takes {wanted} bytes once decoded, over the limit of {shared.capacity}: shrink it"
            raise HttpError(413, reason, code="request_too_large", limit="max_open_bytes")
        if not shared.take(self.caller, size, self._bytes):
            held = f"{shared.used} of {shared.capacity} bytes, yours {shared.held(self.caller)} of them"
            raise self._limiter.busy(f"open requests hold {held}", "memory_full", self.caller, "max_open_bytes")
        self._bytes = wanted

    def release(self, size: int) -> None:
        if not self._closed:
            self._bytes -= size
            self._limiter.bytes.give(self.caller, size)

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Take so many further places among open requests while a block runs; raises 429."""
        requests = self._limiter.requests
        if count and not requests.take(self.caller, count, own=int(self._room is requests)):
            raise self._limiter.no_place(requests, self.caller)
        try:
            yield
        finally:
            if count:
                requests.give(self.caller, count)

    def keep(self) -> None:
        self._kept = True

    def close(self) -> None:
        if not self._closed:
            self.release(self._bytes)
            self._closed = True
            self._room.give(self.caller)
            self._limiter.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None or not self._kept:
            self.close()


class Hold:
    """Bytes that a request holds while a block runs; `keep` leaves them to the request's end."""

    def __init__(self, permit: Permit, size: int = 0) -> None:
        self.size = 0
        self._permit = permit
        self._ended = False
        self.resize(size)

    def resize(self, size: int) -> None:
        """Hold so many bytes from now on; on failure, raised as by `Permit.charge`, it holds what it held before."""
        if self._ended:
            raise HttpError(CLIENT_CLOSED, "the request of the image has ended", code="client_closed")
        if size > self.size:
            self._permit.charge(size - self.size)
        else:
            self._permit.release(self.size - size)
        self.size = size

    def keep(self) -> None:
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)
        self._ended = True


class RequestLimiter:
    """Counts what is open; belongs to one event loop. `retry_s` returns when a refused caller should try again."""

    def __init__(self, config: ServerConfig, retry_s: Callable[[Caller], int]) -> None:
        self.open = 0  # requests and sockets that hold a permit
        self.uploads = Shares("uploads", config.max_open)
        self.requests = Shares("requests", config.max_open)
        self.sockets = Shares("sockets", config.max_sockets)
        self.bytes = Shares("bytes", config.max_open_bytes)
        self._retry_s = retry_s
        self._empty = asyncio.Event()
        self._empty.set()

    def admit(self, caller: Caller, id: str, now: float, *, socket: bool) -> Permit:
        """Admit a request whose body has not been read, or a WebSocket; raises 429 if the caller holds its share."""
        room = self.sockets if socket else self.uploads
        if not socket and not self.requests.has_room(caller):
            raise self.no_place(self.requests, caller)
        self.take_place(room, caller)
        self.open += 1
        self._empty.clear()
        return Permit(self, room, id, now, caller)

    def take_place(self, room: Shares, caller: Caller) -> None:
        if not room.take(caller):
            raise self.no_place(room, caller)

    def leave(self) -> None:
        self.open -= 1
        if not self.open:
            self._empty.set()

    async def settled(self) -> None:
        await self._empty.wait()

    def no_place(self, room: Shares, caller: Caller) -> HttpError:
        reason = f"{room.used} of {room.capacity} {room.name} are open, {room.held(caller)} of them yours"
        return self.busy(reason, "queue_full", caller, "max_sockets" if room is self.sockets else "max_open")

    def busy(self, reason: str, code: str, caller: Caller, limit: str) -> HttpError:
        return try_later(f"the server is busy ({reason})", code, self._retry_s(caller), limit)


def try_later(reason: str, code: str, seconds: int, limit: str | None) -> HttpError:
    headers = {"Retry-After": str(seconds)}
    return HttpError(429, f"{reason}: try again in {seconds} s", code=code, headers=headers, limit=limit)

"""The one way in: whatever route a request takes, it is admitted, read, limited and answered here.

```
async with await ingress.admit(request) as permit:
    data = await ingress.body(request, permit)
    image = await ingress.load_image(value, permit)
    result = await ingress.answer(Call(...), permit, request)
```
"""

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.types import Scope
from starlette.websockets import WebSocket

from photonlite.errors import DeadlineError
from photonlite.server.backend import Backend, BackendStream, Call
from photonlite.server.bodies.reading import read_body
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.images import Hold, RequestImages, from_data_uri, is_remote
from photonlite.server.limits import callers
from photonlite.server.limits.bounds import bounded, check_images
from photonlite.server.limits.callers import Caller
from photonlite.server.limits.estimates import Kind, kind_of
from photonlite.server.limits.limiter import Permit, RequestLimiter
from photonlite.server.limits.rate import RateLimit
from photonlite.server.limits.turns import EngineTurns, Turn
from photonlite.server.transport import fetch
from photonlite.server.transport.disconnect import ClientWatch, WatchedStream
from photonlite.server.usage import note_result, note_stream

_LEAST_S = 1e-6
"""Seconds that a call gets whose time is over: it ends with the error of its deadline."""


class Ingress:
    """Admits requests and asks the model for them. Belongs to one event loop.

    Args:
        config: The limits.
        backend: Answers.
        clock: Gives seconds.
        images: Opens them; unless given, the model does that in this process.

    Attributes:
        config: The limits.
        backend: Answers.
        clock: Gives seconds.
        draining: Whether nothing new is admitted.
        images: Opens images.
    """

    def __init__(
        self,
        config: ServerConfig,
        backend: Backend,
        clock: Callable[[], float] = time.monotonic,
        images: RequestImages | None = None,
    ) -> None:
        self.config = config
        self.backend = backend
        self.draining = False
        self.clock = clock
        self.images = images or RequestImages()
        self._turns = EngineTurns(backend.max_batch, clock)
        self._limiter = RequestLimiter(config.max_open, config.max_sockets, config.max_open_bytes, self._retry_s)
        self._rate = RateLimit(config.requests_per_minute, clock) if config.requests_per_minute else None

    @property
    def open(self) -> int:
        """Requests that are admitted and not answered."""
        return self._limiter.open

    @property
    def open_bytes(self) -> int:
        """What their bodies and images take."""
        return self._limiter.bytes.used

    def drain(self) -> None:
        """Admit nothing from now on."""
        self.draining = True

    async def settled(self) -> None:
        """Wait until nothing is open."""
        await self._limiter.settled()

    async def admit(self, request: HTTPConnection) -> Permit:
        """Let a request in, or a WebSocket before it is accepted.

        Returns:
            Its place, an asynchronous context manager.

        Raises:
            HttpError: 401 without a good key, 403 from another site's page, 503 while the server drains or its engine
                is dead, 429 over the rate limit, with the caller's share of places taken, or where no answer could be
                in time; with Retry-After.
        """
        caller = callers.identify(request, self.config)
        callers.check_origin(request, self.config)
        self._check_ready()
        self._check_rate(caller)
        socket = request.scope["type"] == "websocket"
        if not socket:
            self._check_time(caller, None, self.config.deadline_s)
        return self._limiter.begin(caller, request_id(request.scope), self.clock(), socket=socket)

    async def body(self, request: Request, permit: Permit) -> bytes:
        """Read a request's body, and take its place among open requests.

        Raises:
            HttpError: 413 over the limit, whatever Content-Length says; 400 where it ends early; 408 where it takes too
                long; 415 where it is compressed; 429 where open requests hold too much memory, or the caller has its
                share of places.
        """
        with Hold(permit) as hold:
            # Each piece is there twice when they are put together.
            data = await read_body(request, self.config, lambda size: hold.grow(2 * size))
            hold.resize(len(data))
            hold.keep()
        permit.enter()
        return data

    def count_frame(self, permit: Permit) -> None:
        """Count a frame of a socket as a request.

        Raises:
            HttpError: 429 over the rate limit.
        """
        self._check_rate(permit.caller)

    def image(self, value: str | bytes) -> bytes:
        """Give the bytes of an image that came with the request: raw, or as a data URI.

        Raises:
            HttpError: 400 for what is no data URI, damaged or empty; 413 over the limit.
        """
        if isinstance(value, str):
            value = from_data_uri(value)
        if not value:
            raise HttpError(400, "the image is empty (0 bytes)", code="invalid_image")
        if len(value) > self.config.max_body_bytes:
            message = f"the image has {len(value)} bytes, over the limit of {self.config.max_body_bytes}"
            raise HttpError(413, message, code="image_too_large", limit="max_body_bytes")
        return value

    async def load_image(self, value: str | bytes, permit: Permit) -> bytes:
        """Give the bytes of an image, fetched if need be and allowed; the request holds them before they are there.

        Raises:
            HttpError: As `image` and `fetch`; 429 where open requests hold too much memory.
        """
        if isinstance(value, str) and is_remote(value):
            return await self.fetch(value, permit)
        with Hold(permit) as hold:
            # Of a data URI there are, at its peak, itself, its code, that without white space, and what it stands for.
            hold.resize(4 * len(value) if isinstance(value, str) else len(value))
            data = self.image(value)
            hold.resize(len(data) + (len(value) if isinstance(value, str) else 0))
            hold.keep()
        return data

    async def fetch(self, url: str, permit: Permit) -> bytes:
        """Fetch an image over https from a host that the server's owner has named.

        Raises:
            HttpError: 422 for any other URL, and where the host does not give an image of at most the limit in time;
                429 where open requests hold too much memory.
        """
        with Hold(permit) as hold:
            data = await fetch.fetch(
                url,
                hosts=self.config.url_hosts,
                max_bytes=self.config.max_body_bytes,
                timeout_s=self.config.body_timeout_s,
                charge=hold.grow,
            )
            hold.resize(len(data))
            hold.keep()
        return self.image(data)

    @contextmanager
    def parsing(self, request: Request, body: bytes, permit: Permit) -> Iterator[None]:
        """Hold what taking a body apart takes, while a block does it.

        Raises:
            HttpError: 413 or 429, there is no room for it.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        copies = 0
        if kind == "application/json":
            copies = 2 if body.isascii() else 8  # the text and its values; any character may widen all others to four
        elif kind == "multipart/form-data":
            copies = 3
        with permit.holding(copies * len(body)):
            yield

    def take_arriving(self, network: str, size: int, own: int) -> bool:
        """Count bytes of a WebSocket's message that is still on its way; returns whether there is room for them.

        Args:
            network: What the address counts as: keys are known to the application alone.
            size: Bytes that have come.
            own: Those of the same message that are counted already.
        """
        return self._limiter.bytes.take(Caller(network), size, own)

    def give_arriving(self, network: str, size: int) -> None:
        """Count them no more."""
        self._limiter.bytes.give(Caller(network), size)

    def check_model(self, name: str | None) -> None:
        """Check which model a request means; None means the one that is served.

        Raises:
            HttpError: 404, it means another one.
        """
        if name not in (None, self.backend.name, *self.config.model_aliases):
            message = f"there is no model {name!r:.100}: this server has {self.backend.name!r}, leave 'model' out"
            raise HttpError(404, message, code="model_not_found")

    def check_images(self, count: int) -> None:
        """Check how many images a request holds.

        Raises:
            HttpError: 422, more than the limit.
        """
        check_images(count, self.config)

    async def answer(self, call: Call, permit: Permit, request: Request | WebSocket | None) -> Mapping[str, Any]:
        """Ask the model, and wait. A client that disconnects cancels its call.

        Args:
            call: What to ask; the server's limits are written into it.
            permit: The request's.
            request: Whose client is watched, its body read; whoever reads from a WebSocket, or hands in None, watches
                by itself and cancels the task.

        Raises:
            HttpError: 422 over a limit, 413 or 429 for an image that takes too much memory, 429 where the answer would
                not be in time, 499 for a client that went away, 503 with a dead engine.
            PhotonliteError: Why there is no answer; see `to_http`.
        """
        call, watch, until = self._begin(call, permit, request)
        try:
            result = await watch.run(self._run(call, permit, until))
        finally:
            await watch.close()
        note_result(request, result)
        return result

    async def stream(self, call: Call, permit: Permit, request: Request | None) -> WatchedStream:
        """Ask the model for a caption or an answer as it comes; returns with the first piece.

        The permit stays open beyond the handler: the response closes it, and the pieces; see `EventResponse`.

        Raises:
            HttpError: As `answer`.
            PhotonliteError: Why there is no answer; the pieces raise what goes wrong later.
        """
        call, watch, until = self._begin(call, permit, request)
        turn: Turn | None = None
        try:
            turn = self._turns.join(permit.caller, kind_of(call))
            source = await watch.run(self._open(call, permit, until, turn))
        except BaseException:
            if turn is not None:
                self._turns.leave(turn, answered=False)
            await watch.close()
            raise
        pieces = WatchedStream(source, watch, partial(self._turns.leave, turn))
        note_stream(request, pieces)
        await pieces.begin()
        permit.keep()
        return pieces

    def _begin(self, call: Call, permit: Permit, request: HTTPConnection | None) -> tuple[Call, ClientWatch, float]:
        """Check a call and write its limits into it; returns also who watches its client, and when its time is over."""
        self._check_alive()
        call = bounded(call, self.config, self.backend.skills)
        watched = request if isinstance(request, Request) else None
        now = self.clock()
        passed = 0.0 if watched is None else now - permit.admitted
        seconds = max(_LEAST_S, (call.deadline_s or self.config.deadline_s) - passed)
        if not call.realtime:  # frames that come too late are dropped without an error
            self._check_time(permit.caller, kind_of(call), seconds)
        cache_salt = call.cache_salt or permit.cache_salt
        call = dataclasses.replace(call, deadline_s=seconds, cache_salt=cache_salt, caller=permit.caller.id)
        return call, ClientWatch(watched, now + seconds, self.clock), now + seconds

    async def _run(self, call: Call, permit: Permit, until: float) -> Mapping[str, Any]:
        # An image is decoded in its caller's own turn, so that one with costly images holds up nobody else.
        async with self._turns.turn(permit.caller, kind_of(call), realtime=call.realtime) as goes_first:
            with Hold(permit) as hold:
                return await self.backend.run(self._due(await self._opened(call, hold), until, goes_first))

    async def _open(self, call: Call, permit: Permit, until: float, turn: Turn) -> BackendStream:
        goes_first = await turn.granted
        with Hold(permit) as hold:
            stream = await self.backend.stream(self._due(await self._opened(call, hold), until, goes_first))
            hold.keep()
        return stream

    async def _opened(self, call: Call, hold: Hold) -> Call:
        """Decode the image of a call."""
        if not isinstance(call.image, bytes):
            return call
        return dataclasses.replace(call, image=await self.images.open(call.image, hold))

    def _due(self, call: Call, until: float, goes_first: bool) -> Call:
        """Return a call whose turn it is: its deadline counts from now.

        Raises:
            DeadlineError: Its time is over.
        """
        left = until - self.clock()
        if left <= 0:
            raise DeadlineError("no turn came in time: ask again when less is open")
        return dataclasses.replace(call, deadline_s=left, realtime=goes_first)

    def _check_ready(self) -> None:
        self._check_alive()
        if self.draining:
            raise _unavailable("the server is shutting down: ask another one", "draining")

    def _check_alive(self) -> None:
        if not self.backend.alive:
            raise _unavailable("the engine has stopped, and so does the server: ask another one", "engine_died")

    def _check_rate(self, caller: Caller) -> None:
        wait_s = 0.0 if self._rate is None else self._rate.take(caller.id)
        if wait_s > 0:
            message = f"more than {self.config.requests_per_minute} requests a minute"
            raise _refused(message, "rate_limit_exceeded", math.ceil(wait_s), "requests_per_minute")

    def _check_time(self, caller: Caller, kind: Kind | None, seconds: float) -> None:
        """Refuse a request that would not be answered in time by what others have taken."""
        expected = self._turns.expected_s(caller, kind)
        if expected > seconds:
            message = f"the answer is expected in {expected:.0f} s, and the deadline is in {seconds:.0f} s"
            raise _refused(message, "deadline_out_of_reach", math.ceil(expected - seconds), None)

    def _retry_s(self, caller: Caller) -> int:
        return max(1, math.ceil(self._turns.next_s(caller)))


def request_id(scope: Scope) -> str:
    """Give the id of a request: the same one every time, made when first asked for."""
    state = scope.setdefault("state", {})
    return str(state.setdefault("request_id", secrets.token_hex(12)))


def _refused(message: str, code: str, seconds: int, limit: str | None) -> HttpError:
    message, headers = f"{message}: try again in {seconds} s", {"Retry-After": str(seconds)}
    return HttpError(429, message, code=code, headers=headers, limit=limit)


def _unavailable(message: str, code: str) -> HttpError:
    return HttpError(503, message, code=code, headers={"Retry-After": "1"})

"""The way of a request from a route to the model: admit it, read its body and images, apply the limits, answer it.

```
async with await ingress.admit(request) as permit:
    data = await ingress.body(request, permit)
    image = await ingress.load_image(value, permit)
    result = await ingress.answer(Call(...), permit, request)
```
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from photonlite.errors import DeadlineError
from photonlite.server.backend import Backend, BackendStream, Call
from photonlite.server.bodies.reading import read_body
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.images import RequestImages, from_data_uri, is_remote
from photonlite.server.limits import callers
from photonlite.server.limits.bounds import bounded
from photonlite.server.limits.callers import Caller
from photonlite.server.limits.estimates import Kind, kind_of
from photonlite.server.limits.limiter import Hold, Permit, RateLimit, RequestLimiter
from photonlite.server.limits.turns import EngineTurns, Turn
from photonlite.server.transport.disconnect import ClientWatch, WatchedStream
from photonlite.server.transport.fetch import fetch
from photonlite.server.transport.logs import request_id
from photonlite.server.usage import note_result, note_stream

_LEAST_S = 1e-6
"""Deadline of a call whose time is over: it ends with the error of its deadline."""


class Ingress:
    """Admits requests and asks the model; belongs to one event loop.

    Args:
        config: The limits.
        backend: Answers calls.
        clock: Returns seconds.
        images: Decodes images; by default the model decodes them in this process.

    Attributes:
        draining: Whether new requests are refused; set while the server stops.
        limiter: Counts what is open.
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
        self.limiter = RequestLimiter(config.max_open, config.max_sockets, config.max_open_bytes, self._retry_s)
        self._turns = EngineTurns(backend.max_batch, clock)
        self._rate = RateLimit(config.requests_per_minute, clock) if config.requests_per_minute else None

    async def admit(self, request: HTTPConnection) -> Permit:
        """Admit a request, or a WebSocket before it is accepted.

        Raises:
            HttpError: 401 without a good key; 403 from another site's page; 503 while the server drains or its engine
                is dead; 429 over the rate limit, with the caller's share in use, or where no answer could be in time.
        """
        caller = callers.identify(request, self.config)
        callers.check_origin(request, self.config)
        self._check_alive()
        if self.draining:
            raise _unavailable("the server is shutting down: ask another one", "draining")
        self._check_rate(caller)
        socket = request.scope["type"] == "websocket"
        if not socket:
            self._check_time(caller, None, self.config.deadline_s)
        return self.limiter.admit(caller, request_id(request.scope), self.clock(), socket=socket)

    async def body(self, request: Request, permit: Permit) -> bytes:
        """Read a request's body, then count the request among open ones.

        Raises:
            HttpError: As `read_body`; 429 where open requests hold too much memory, or the caller has its share.
        """
        with Hold(permit) as hold:
            data = await read_body(request, self.config, lambda size: hold.grow(2 * size))  # joining copies all pieces
            hold.resize(len(data))
            hold.keep()
        permit.enter()
        return data

    def check_frame_rate(self, permit: Permit) -> None:
        """Count a frame of a socket as a request.

        Raises:
            HttpError: 429 over the rate limit.
        """
        self._check_rate(permit.caller)

    def image(self, value: str | bytes) -> bytes:
        """Return the bytes of an image in the request: raw, or a data URI.

        Raises:
            HttpError: 400 if the data URI is damaged or empty; 413 over the limit.
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
        """Return the bytes of an image: raw, a data URI, or a URL of an allowed host, which is fetched.

        Raises:
            HttpError: As `image` and `fetch`; 429 where open requests hold too much memory.
        """
        with Hold(permit) as hold:
            if isinstance(value, str) and is_remote(value):
                config = self.config
                data = await fetch(
                    value,
                    hosts=config.url_hosts,
                    max_bytes=config.max_body_bytes,
                    timeout_s=config.body_timeout_s,
                    charge=hold.grow,
                )
                hold.resize(len(data))
                data = self.image(data)
            else:
                text_bytes = len(value) if isinstance(value, str) else 0
                # Peak of a data URI: itself, its base64, the same without white space, and the decoded bytes.
                hold.resize(4 * text_bytes or len(value))
                data = self.image(value)
                hold.resize(len(data) + text_bytes)
            hold.keep()
        return data

    def parsing(self, request: Request, body: bytes, permit: Permit) -> Hold:
        """Hold the memory that parsing a body takes, while a block does it.

        Raises:
            HttpError: 413 or 429, there is no room for it.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        copies = 0
        if kind == "application/json":
            copies = 2 if body.isascii() else 8  # text and values; one wide character makes all take four bytes
        elif kind == "multipart/form-data":
            copies = 3
        return Hold(permit, copies * len(body))

    def check_model(self, name: str | None) -> None:
        """Check the model that a request names; None means the one that is served.

        Raises:
            HttpError: 404, it names another one.
        """
        if name not in (None, self.backend.name, *self.config.model_aliases):
            message = f"there is no model {name!r:.100}: this server has {self.backend.name!r}, leave 'model' out"
            raise HttpError(404, message, code="model_not_found")

    def check_images(self, count: int) -> None:
        """Check the number of images of a request.

        Raises:
            HttpError: 422, more than the limit.
        """
        if count > self.config.max_images:
            message = f"the request holds {count} images, over the limit of {self.config.max_images}"
            raise HttpError(422, message, code="too_many_images", limit="max_images")

    async def answer(self, call: Call, permit: Permit, request: Request | WebSocket | None) -> Mapping[str, Any]:
        """Ask the model and wait; the call is cancelled if the client disconnects.

        Args:
            call: What to ask; the server's limits are written into it.
            permit: Of the request.
            request: Its body has been read. Only a `Request` is watched for a disconnect: callers that pass a
                WebSocket or None cancel the task themselves.

        Raises:
            HttpError: 422 over a limit, 413 or 429 for an image that takes too much memory, 429 if the answer would
                be late, 499 for a client that went away, 503 with a dead engine.
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
        """Ask the model for a streamed caption or answer; returns with the first piece, raises as `answer`.

        The permit stays open beyond the handler: the response closes it, and the stream; see `EventResponse`.
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
        """Write the limits into a call; returns it with the watch of its client and the time of its deadline."""
        self._check_alive()
        call = bounded(call, self.config, self.backend.skills)
        watched = request if isinstance(request, Request) else None
        now = self.clock()
        passed = 0.0 if watched is None else now - permit.admitted
        seconds = max(_LEAST_S, (call.deadline_s or self.config.deadline_s) - passed)
        if not call.realtime:  # late frames are dropped without an error
            self._check_time(permit.caller, kind_of(call), seconds)
        cache_salt = call.cache_salt or permit.cache_salt
        call = dataclasses.replace(call, deadline_s=seconds, cache_salt=cache_salt, caller=permit.caller.id)
        return call, ClientWatch(watched, now + seconds, self.clock), now + seconds

    async def _run(self, call: Call, permit: Permit, until: float) -> Mapping[str, Any]:
        # An image is decoded in its caller's turn, so that costly images delay no other caller.
        async with self._turns.turn(permit.caller, kind_of(call), realtime=call.realtime) as goes_first:
            with Hold(permit) as hold:
                return await self.backend.run(await self._prepared(call, hold, until, goes_first))

    async def _open(self, call: Call, permit: Permit, until: float, turn: Turn) -> BackendStream:
        goes_first = await turn.granted
        with Hold(permit) as hold:
            stream = await self.backend.stream(await self._prepared(call, hold, until, goes_first))
            hold.keep()
        return stream

    async def _prepared(self, call: Call, hold: Hold, until: float, goes_first: bool) -> Call:
        """Decode the image of a call whose turn it is, and count its deadline from now.

        Raises:
            DeadlineError: Its time is over.
        """
        if isinstance(call.image, bytes):
            call = dataclasses.replace(call, image=await self.images.open(call.image, hold))
        left = until - self.clock()
        if left <= 0:
            raise DeadlineError("no turn came in time: ask again when less is open")
        return dataclasses.replace(call, deadline_s=left, realtime=goes_first)

    def _check_alive(self) -> None:
        if not self.backend.alive:
            raise _unavailable("the engine has stopped, and so does the server: ask another one", "engine_died")

    def _check_rate(self, caller: Caller) -> None:
        wait_s = 0.0 if self._rate is None else self._rate.take(caller.id)
        if wait_s > 0:
            message = f"more than {self.config.requests_per_minute} requests a minute"
            raise _refused(message, "rate_limit_exceeded", math.ceil(wait_s), "requests_per_minute")

    def _check_time(self, caller: Caller, kind: Kind | None, seconds: float) -> None:
        """Refuse a request that is expected to miss its deadline, by what others have taken."""
        expected = self._turns.expected_s(caller, kind)
        if expected > seconds:
            message = f"the answer is expected in {expected:.0f} s, and the deadline is in {seconds:.0f} s"
            raise _refused(message, "deadline_out_of_reach", math.ceil(expected - seconds), None)

    def _retry_s(self, caller: Caller) -> int:
        return max(1, math.ceil(self._turns.next_s(caller)))


def _refused(message: str, code: str, seconds: int, limit: str | None) -> HttpError:
    message, headers = f"{message}: try again in {seconds} s", {"Retry-After": str(seconds)}
    return HttpError(429, message, code=code, headers=headers, limit=limit)


def _unavailable(message: str, code: str) -> HttpError:
    return HttpError(503, message, code=code, headers={"Retry-After": "1"})

"""The path of requests from routes to the model: admission, body, images, limits, answer."""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from photonlite.errors import DeadlineError, ImageFetchError, ImageTooLargeError, TruncatedError
from photonlite.images.decode import image_size
from photonlite.images.fetch import fetch
from photonlite.images.source import DecodedImage, is_url
from photonlite.server.bodies.reading import media_type
from photonlite.server.calls import Call, ServedModel, ask_model, bounded, check_parts, count_parts, image_places
from photonlite.server.config import ServerConfig
from photonlite.server.errors import CLIENT_CLOSED, HttpError, later, to_http
from photonlite.server.images import RequestImages, from_data_uri, naming
from photonlite.server.limits import callers
from photonlite.server.limits.callers import Caller
from photonlite.server.limits.limiter import Hold, Permit, RateLimit, RequestLimiter, try_later
from photonlite.server.limits.turns import End, EngineTurns, Kind, Turn, kind_of
from photonlite.server.transport.logs import count_tokens
from photonlite.server.transport.streams import ClientWatch, WatchedStream
from photonlite.server.transport.trace_context import request_id

R = TypeVar("R")

_LOADED_TOGETHER = 8  # images of a request, which may be fetched
_LEAST_S = 1e-6  # deadline of a call whose time is over: it ends with the error of its deadline


class Ingress:
    """Admits requests and asks the model; belongs to one event loop. While `draining`, new requests are refused."""

    def __init__(
        self,
        config: ServerConfig,
        model: ServedModel,
        clock: Callable[[], float] = time.monotonic,
        images: RequestImages | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.draining = False
        self.clock = clock
        self.images = images or RequestImages()
        self.limiter = RequestLimiter(config, self._retry_s)
        self._turns = EngineTurns(model.max_batch, clock)
        self._rate = RateLimit(config.requests_per_minute, clock) if config.requests_per_minute else None

    def refusal(self, request: HTTPConnection) -> HttpError | None:
        """Return the refusal of a request that has no place now; None where it may have one, or may fail otherwise."""
        if self._rate is not None or self.draining or not self.model.alive:
            return None
        try:
            callers.check_host(request, self.config)
            caller = callers.identify(request, self.config)
        except HttpError:
            return None
        requests = self.limiter.requests
        return None if requests.has_room(caller) else self.limiter.no_place(requests, caller)

    async def admit(self, request: HTTPConnection) -> Permit:
        """Admit a request, or a WebSocket before it is accepted; raises 401, 403, 429 and 503."""
        caller = callers.identify(request, self.config)
        callers.check_origin(request, self.config)
        self._check_alive()
        if self.draining:
            raise later("the server is shutting down: ask another one", "draining")
        self.check_rate(caller)
        socket = request.scope["type"] == "websocket"
        if not socket:
            self._check_time(caller, None, self.config.deadline_s)
        return self.limiter.admit(caller, request_id(request.scope), self.clock(), socket=socket)

    def parsing(self, request: Request, body: bytes, permit: Permit) -> Hold:
        """Hold the memory that parsing a body takes, while a block does it; raises 413 or 429 without room for it."""
        kind = media_type(request)
        copies = 3 if kind == "multipart/form-data" else 0
        if kind == "application/json":
            copies = 2 if body.isascii() else 8  # text and values; one wide character makes all take four bytes
        return Hold(permit, copies * len(body))

    def image(self, value: str | bytes) -> bytes:
        """Return the bytes of an image, raw or a data URI; raises 400 if it is damaged or empty, 413 over the limit."""
        if isinstance(value, str):
            value = from_data_uri(value)
        if not value:
            raise HttpError(400, "the image is empty (0 bytes)", code="invalid_image")
        if len(value) > self.config.max_body_bytes:
            message = f"the image has {len(value)} bytes, over the limit of {self.config.max_body_bytes}"
            raise HttpError(413, message, code="image_too_large", limit="max_body_bytes")
        return value

    async def load_image(self, value: str | bytes, permit: Permit) -> bytes:
        """Return the bytes of an image, which may also be a URL; raises as `image`, 422 for a URL, and 429."""
        with Hold(permit) as hold:
            if isinstance(value, str) and is_url(value):
                data = self.image(await self._fetch(value, hold))
                hold.resize(len(data))
            else:
                text_bytes = len(value) if isinstance(value, str) else 0
                # Peak of a data URI: itself, its base64, the same without white space, and the decoded bytes.
                hold.resize(4 * text_bytes or len(value))
                data = self.image(value)
                hold.resize(len(data) + text_bytes)
            hold.keep()
        return data

    async def load_images(
        self, images: Sequence[str], places: Sequence[int], permit: Permit, request: Request
    ) -> list[bytes]:
        """Load the images of a conversation, several at a time; each image stands in some of the places.

        Ends at the server's deadline, or when the client leaves; raises as `load_image`, and 499.
        """
        free = asyncio.Semaphore(_LOADED_TOGETHER)

        async def load(number: int) -> bytes:
            async with free:
                with naming(places.index(number) + 1, len(places)):
                    return await self.load_image(images[number], permit)

        watch = ClientWatch(request, permit.admitted + self.config.deadline_s, self.clock)
        try:
            return await watch.run(_all([load(number) for number in range(len(images))]))
        finally:
            await watch.close()

    async def _fetch(self, url: str, hold: Hold) -> bytes:
        config = self.config
        if not config.url_hosts:
            message = "images are not fetched from URLs: send image_url as data:image/jpeg;base64,..."
            raise HttpError(422, message, code="remote_image_refused")
        most, longest = config.max_body_bytes, config.body_timeout_s
        try:
            return await fetch(url, max_bytes=most, timeout_s=longest, hosts=config.url_hosts, hold=hold.resize)
        except ImageTooLargeError as cause:
            raise HttpError(413, str(cause), code="image_too_large", limit="max_body_bytes") from cause
        except ImageFetchError as cause:
            limit = "body_timeout_s" if isinstance(cause.__cause__, TimeoutError) else None
            raise HttpError(422, str(cause), code="image_fetch_failed", limit=limit) from cause

    def adapter_of(self, name: str | None, asked: str | None = None) -> str | None:
        """Return the adapter that answers: the one that is asked for, or that of a model's name `MODEL:ADAPTER`.

        Raises 404 for a model or an adapter that is not there, 422 where two are named.
        """
        known = (None, self.model.name, *self.config.model_aliases)
        base, colon, own = (name or "").rpartition(":")
        of_model = own if name not in known and colon and base in known else None
        self.check_model(name if of_model is None else base)
        if None not in (of_model, asked) and of_model != asked:
            raise HttpError(422, f"model names the adapter {of_model!r:.100}, and the request {asked!r:.100}: give one")
        found = asked if of_model is None else of_model
        names = [one.name for one in self.model.adapters()] if found is not None else []
        if found is not None and found not in names:
            loaded = ", ".join(names) or "none"
            raise HttpError(404, f"no adapter is called {found!r:.100}: loaded are {loaded}", code="adapter_not_found")
        return found

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.model.name, *self.config.model_aliases):
            message = f"there is no model {name!r:.100}: this server has {self.model.name!r}, leave 'model' out"
            raise HttpError(404, message, code="model_not_found")

    def check_images(self, count: int, *, places: int | None = None) -> None:
        """Check the number of images, or of the places in which those of a conversation stand; raises 422."""
        if places is not None and self.model.reads_several:
            if places > self.config.max_images:
                message = f"the request holds {places} images, over the limit of {self.config.max_images}"
                raise HttpError(422, message, code="too_many_images", limit="max_images")
        elif count > 1:
            message = f"the request holds {count} images, over the limit of 1: ask about each by itself"
            raise HttpError(422, message, code="too_many_images")

    async def answer(self, call: Call, permit: Permit, request: Request | WebSocket | None) -> Mapping[str, Any]:
        """Ask the model; a call for a `Request`, whose body must have been read, is cancelled if its client leaves.

        Callers that pass a WebSocket or None cancel the task themselves. Raises 413, 422, 429, 499 and 503.
        """
        call, watch, turn = self._begin(call, permit, request)
        try:
            result = await watch.run(self._ask(call, permit, watch.until, turn))
        except BaseException as error:
            self._turns.leave(turn, _end_of(error))
            raise
        else:
            self._turns.leave(turn, "answered", result)
        finally:
            await watch.close()
        count_tokens(request, result)
        return result

    async def stream(self, call: Call, permit: Permit, request: Request | None) -> WatchedStream:
        """As `answer`, but returns with the first piece; the response closes the permit: see `EventResponse`."""
        call, watch, turn = self._begin(call, permit, request)
        try:
            result = await watch.run(self._ask(call, permit, watch.until, turn))
        except BaseException as error:
            self._turns.leave(turn, _end_of(error))
            await watch.close()
            raise

        def on_end(answered: bool) -> None:
            self._turns.leave(turn, "answered" if answered else "given up", result)
            if answered:
                count_tokens(request, result)

        stream = WatchedStream(result, watch, on_end)
        await stream.begin()
        permit.keep()
        return stream

    def _begin(self, call: Call, permit: Permit, request: HTTPConnection | None) -> tuple[Call, ClientWatch, Turn]:
        self._check_alive()
        call = bounded(call, self.config, self.model)
        kind = kind_of(call)
        watched = request if isinstance(request, Request) else None
        now = self.clock()
        passed = 0.0 if watched is None else now - permit.admitted
        seconds = max(_LEAST_S, (call.deadline_s or self.config.deadline_s) - passed)
        if not call.realtime:  # late frames are dropped without an error
            self._check_time(permit.caller, kind, seconds)
        call = dataclasses.replace(call, cache_salt=call.cache_salt or permit.caller.tenant, caller=permit.caller.id)
        watch = ClientWatch(watched, now + seconds, self.clock)
        return call, watch, self._turns.join(permit.caller, kind, realtime=call.realtime)

    async def _ask(self, call: Call, permit: Permit, until: float, turn: Turn) -> Mapping[str, Any]:
        goes_first = await turn.granted
        with contextlib.ExitStack() as stack:
            holds: list[Hold] = []

            async def opened(image: bytes | DecodedImage) -> bytes | DecodedImage:
                """Decode an image in its caller's turn, so that it delays no other caller."""
                if isinstance(image, DecodedImage):
                    return image
                holds.append(stack.enter_context(Hold(permit)))
                return await self.images.open(image, holds[-1])

            image = None if call.image is None else await opened(call.image)
            places, images = image_places(call.arguments), []
            for number, one in enumerate(call.images):
                with naming(places.index(number) + 1, len(places)):
                    images.append(await opened(one))
            call = dataclasses.replace(call, image=image, images=tuple(images))
            parts = await self._count_parts(call)
            left = until - self.clock()
            if left <= 0:
                raise DeadlineError("no turn came in time: ask again when less is open")
            with permit.places(parts - 1):
                self.check_rate(permit.caller, parts - 1)
                result = await ask_model(self.model, dataclasses.replace(call, deadline_s=left, realtime=goes_first))
            if call.stream:
                for hold in holds:
                    hold.keep()
        return result

    async def _count_parts(self, call: Call) -> int:
        """Return how many requests a call makes of the engine; raises 422 over the limit."""
        size = None
        if call.arguments.get("tile") is not None and call.image is not None:
            size = await asyncio.to_thread(image_size, call.image, self.model.image_limits)
        return check_parts(count_parts(call.arguments, size, self.model.sight), self.config)

    def _check_alive(self) -> None:
        if not self.model.alive:
            raise later(
                "the engine has stopped: the server ends, or restarts; ask again, or another one", "engine_died"
            )

    def check_rate(self, caller: Caller, count: int = 1) -> None:
        """Count requests, or frames of a socket; raises 429 over the rate limit."""
        wait_s = 0.0 if self._rate is None else self._rate.take(caller.id, count)
        if wait_s > 0:
            reason = f"more than {self.config.requests_per_minute} requests a minute"
            raise try_later(reason, "rate_limit_exceeded", math.ceil(wait_s), "requests_per_minute")

    def _check_time(self, caller: Caller, kind: Kind | None, seconds: float) -> None:
        """Refuse a request that is expected to miss its deadline, by what others have taken."""
        expected = self._turns.expected_s(caller, kind)
        if expected > seconds:
            reason = f"the answer is expected in {expected:.0f} s, and the deadline is in {seconds:.0f} s"
            raise try_later(reason, "deadline_out_of_reach", math.ceil(expected - seconds), None)

    def _retry_s(self, caller: Caller) -> int:
        return max(1, math.ceil(self._turns.next_s(caller)))


async def _all(works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """Return all results; the first failure, or cancelling, ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _end_of(error: BaseException) -> End:
    """Return how a request without an answer has ended: one that was refused says nothing of the engine's time."""
    refused = to_http(error).status < CLIENT_CLOSED and not isinstance(error, TruncatedError)
    return "refused" if refused else "given up"

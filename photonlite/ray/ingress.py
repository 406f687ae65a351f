"""The ingress: takes requests in, and passes each on to the replica that its key belongs to.

```
client ──> proxy of Ray Serve ──> ingress ──────────────────────────> replica: the server's application
                                  key of API, body, affinity key      limits, turns, engine
           <─────────────────────────────────────────────────────── batches of ASGI messages
a replica is lost: nothing was sent ──> the request is sent again, once
                   a stream has begun ──> its last event is the error; a WebSocket is closed with 1001
```

It holds a request's body until the answer is complete, and nothing of any model.
"""

import asyncio
import dataclasses
import ipaddress
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from photonlite.ray.hosting import carried_scope
from photonlite.ray.keys import affinity_key
from photonlite.ray.metrics import joined
from photonlite.server.app import cors
from photonlite.server.bodies.reading import read_body
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError, later
from photonlite.server.limits.callers import Caller, check_metrics, identify
from photonlite.server.limits.limiter import Permit, RequestLimiter
from photonlite.server.routes.realtime import GOING_AWAY
from photonlite.server.transport.logs import log
from photonlite.server.transport.middleware import ErrorResponses
from photonlite.server.transport.streams import EventResponse, failure_event
from photonlite.server.transport.trace_context import request_id

_GRACE_S: Final = 5.0  # seconds beyond its deadline in which a replica must have answered with the deadline's error
_LARGE: Final = 1 << 16  # bytes of a body from which on it is read on a thread: the event loop must not stop for it
_SENDS: Final = 2  # times that a request is sent at most


class ReplicaLostError(Exception):
    """The replica that had a request or a WebSocket has died, or takes no more messages because it stops."""


class Engines(Protocol):
    """The replicas, as the ingress asks them; each method raises `ReplicaLostError`. See `hosting.HostedApp`."""

    def answer(self, key: str | None, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]: ...
    def connect(self, scope: Scope, connection: str) -> AsyncGenerator[list[Message], None]: ...
    async def push(self, connection: str, message: Message) -> None:
        """Push a message to the replica at which a WebSocket was opened."""

    async def metrics(self) -> Mapping[str, str]:
        """Return the metrics of each replica by its name, in Prometheus's format."""


class IngressMetrics:
    def __init__(self, limiter: RequestLimiter) -> None:
        self.registry = CollectorRegistry()
        self.lost = Counter("photonlite_ingress_lost", "Requests whose replica was lost.", registry=self.registry)
        self.resent = Counter("photonlite_ingress_resent", "Of these, sent to another one.", registry=self.registry)
        Gauge("photonlite_ingress_open", "Requests taken in.", registry=self.registry).set_function(
            lambda: limiter.open
        )


def create_ingress(engines: Engines, config: ServerConfig, replicas: int) -> Starlette:
    """Build the ASGI application in front of so many replicas, each of which keeps to the limits of `config`."""
    forwarder = Forwarder(engines, config, replicas)
    app = Starlette(
        routes=[Route("/metrics", forwarder.metrics, methods=["GET"])],
        middleware=[*cors(config), Middleware(ErrorResponses, config=config)],
    )
    app.router.default = forwarder
    return app


class Forwarder:
    """Passes requests and WebSockets on; belongs to one event loop."""

    def __init__(self, engines: Engines, config: ServerConfig, replicas: int) -> None:
        self._engines = engines
        self._config = config
        wide = dataclasses.replace(
            config, max_open=replicas * config.max_open, max_sockets=replicas * config.max_sockets
        )
        self._limiter = RequestLimiter(wide, lambda caller: 1)
        self._metrics = IngressMetrics(self._limiter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_reach(HTTPConnection(scope), self._config)
        refuse_changes(HTTPConnection(scope), self._config)
        if scope["type"] == "websocket":
            async with self._admit(scope, socket=True):
                await self._relay_socket(scope, receive, send)
        elif scope["method"] == "POST":
            async with self._admit(scope, socket=False) as permit:
                request = Request(scope, receive)
                body = await read_body(request, self._config, permit)
                await self._relay(await self._key(request, body, permit.caller), scope, body, send)
        else:  # the replica checks the key where one is needed; /health and /ready are answered whatever is open
            await self._relay(None, scope, b"", send)

    async def metrics(self, request: Request) -> Response:
        """Answer with every replica's metrics, told apart by the label `replica`, and the ingress's own."""
        check_reach(request, self._config)
        check_metrics(request, self._config)
        try:
            text = joined(await self._engines.metrics())
        except ReplicaLostError as cause:
            raise _lost() from cause
        return Response(text + generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _admit(self, scope: Scope, *, socket: bool) -> Permit:
        caller = identify(HTTPConnection(scope), self._config)
        return self._limiter.admit(caller, request_id(scope), time.monotonic(), socket=socket)

    async def _key(self, request: Request, body: bytes, caller: Caller) -> str | None:
        asked = request, body, caller.tenant, self._config.model_aliases
        return affinity_key(*asked) if len(body) < _LARGE else await asyncio.to_thread(affinity_key, *asked)

    async def _relay(self, key: str | None, scope: Scope, body: bytes, send: Send) -> None:
        """Send a request, and pass the answer on; raises 503 if its replica is lost and it cannot be sent again."""
        carried = carried_scope(scope, request_id(scope))
        for left in reversed(range(_SENDS)):
            sent = Progress(send)
            try:
                await self._pass_on(self._engines.answer(key, carried, body), sent)
                return
            except ReplicaLostError as cause:
                again = left > 0 and not sent.begun
                self._note_loss(request_id(scope), cause, again=again)
                if sent.complete:
                    return
                if sent.is_events:
                    await send(
                        {"type": "http.response.body", "body": failure_event(_lost(), scope), "more_body": False}
                    )
                    return
                if not again:
                    raise _lost() from cause

    async def _relay_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # "websocket.connect", which the replica gives its application
        # Not the request's id, which a client may choose: it could name the WebSocket of another one.
        connection, sent = secrets.token_hex(16), Progress(send)
        messages = self._engines.connect(carried_scope(scope, request_id(scope)), connection)
        try:
            async with asyncio.TaskGroup() as group:
                pump = group.create_task(self._pump(connection, receive, sent.started))
                await self._pass_on(messages, sent)
                pump.cancel()
        except* ReplicaLostError as group_of_one:
            self._note_loss(request_id(scope), group_of_one.exceptions[0], again=False)
            if not sent.begun:
                raise _lost() from group_of_one
            if not sent.complete:
                await send({"type": "websocket.close", "code": GOING_AWAY, "reason": "replica_lost"})
        except* HttpError as group_of_one:  # no replica has taken it
            raise group_of_one.exceptions[0] from None

    async def _pump(self, connection: str, receive: Receive, started: asyncio.Event) -> None:
        """Push what the client sends, one message after the other, as soon as the WebSocket is open at a replica."""
        await started.wait()
        kind = None
        while kind != "websocket.disconnect":
            message = await receive()
            kind = message["type"]
            await self._engines.push(connection, message)

    async def _pass_on(self, answer: AsyncGenerator[list[Message], None], sent: "Progress") -> None:
        try:
            async with aclosing(answer), asyncio.timeout(self._config.deadline_s + _GRACE_S) as patience:
                async for batch in answer:
                    patience.reschedule(None)
                    for message in batch:
                        await sent.send(message)
        except TimeoutError as cause:
            raise later("no replica has taken the request in time: try again later", "no_replica") from cause

    def _note_loss(self, id: str, cause: BaseException, *, again: bool) -> None:
        self._metrics.lost.inc()
        self._metrics.resent.inc(again)
        log("replica lost", id=id, reason=type(cause.__cause__ or cause).__name__, again=again)


class Progress:
    """Passes an application's messages on, and remembers how far the response has come."""

    def __init__(self, send: Send) -> None:
        self.started = asyncio.Event()
        self.is_events = False  # server-sent events, which can end with an error
        self.complete = False
        self._send = send

    @property
    def begun(self) -> bool:
        return self.started.is_set()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        self.started.set()
        if kind == "http.response.start":
            kind_of_body = Headers(raw=message["headers"]).get("content-type", "")
            self.is_events = kind_of_body.startswith(EventResponse.media_type)
        self.complete |= kind == "websocket.close" or (
            kind.endswith("response.body") and not message.get("more_body", False)
        )
        await self._send(message)


def check_reach(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse clients on other machines, 403, unless there are keys or `expose` is set.

    `photonlite serve` does not listen beyond this machine then, but the proxies of Ray Serve may.
    """
    if config.api_keys or config.expose:
        return
    host = connection.client.host if connection.client else ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    message = "this service answers its own machine only: give it API keys, or set expose to answer everybody"
    raise HttpError(403, message, code="not_exposed")


def refuse_changes(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse to load or unload an adapter, 403: one replica would do it, and the others and later ones would not."""
    path = connection.scope["path"].removeprefix(connection.scope.get("root_path", ""))
    if path.startswith("/v1/adapters") and connection.scope.get("method") in ("POST", "DELETE"):
        identify(connection, config)
        message = "replicas load their adapters when they start: name them as `adapters` of the service's settings"
        raise HttpError(403, message, code="adapters_fixed")


def _lost() -> HttpError:
    return later("the replica that was answering is gone: send the request again", "replica_lost")

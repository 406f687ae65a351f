"""Serves a model until a signal.

```
SIGTERM ──> nothing new is admitted, /ready says 503 ──> accepted requests end, within drain_s ──> connections close
        ──> a second one: everything is dropped at once
        ──> a thread that never ends: the guard ends the process, exit code 1
SIGHUP  ──> the keys are read again; open requests go on

the engine dies ──> its callers get 503 "engine_died", /health and /ready say 503 ──> exit code ENGINE_DIED
it hangs        ──> exit code HUNG, by the watchdog
```
"""

import asyncio
import contextlib
import dataclasses
import faulthandler
import functools
import math
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Final, TypedDict, Unpack

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.types import Scope

from photonlite.api import VisionModel
from photonlite.config import ImageLimits
from photonlite.errors import PhotonliteError
from photonlite.images.decode import ignore_pillow_warnings
from photonlite.images.isolation.pool import DecodePool, default_workers
from photonlite.pauses import short_collections
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.images import RequestImages
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import key_id
from photonlite.server.link import NO_RESTARTS
from photonlite.server.metrics import UNMATCHED, HttpMetrics
from photonlite.server.transport.connections import LimitedConfig
from photonlite.server.transport.listening import allow_files, listen
from photonlite.server.transport.logs import LOGGER, json_lines, library_messages, log
from photonlite.server.watchdog import ENGINE_DIED, Watchdog
from photonlite.skills.names import SeveralNamesWarning

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TELLING_S = 5  # seconds in which open requests get their errors when the engine has died
_CLOSING_S = 1  # seconds that responses have at least to reach their clients
_BACKLOG = 2048  # connections that the kernel keeps until they are accepted
_TICK_S = 0.1  # seconds for which uvicorn sleeps between ticks
_STUCK_S = 5  # seconds after draining at which a process that still runs has a stuck thread
_RELOAD: Final = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # Windows has none

_copy = functools.cache(os.dup)  # of stderr: one for all calls, open until the end of the process


class Hooks(TypedDict, total=False):
    on_start: Callable[[str, int], None] | None  # called with address and port as soon as requests are answered
    reload: Callable[[], ServerConfig] | None  # called at each SIGHUP; the keys that it returns are used from then on
    guard: Callable[[float], None] | None  # called when stopping, with the seconds until the process must be gone
    watchdog: Watchdog | None  # watches from the first request to the signal to stop


def serve(
    model: VisionModel,
    config: ServerConfig,
    *,
    listener: socket.socket | None = None,
    image_limits: ImageLimits | None = None,
    restarts: Mapping[str, int] = NO_RESTARTS,
    **hooks: Unpack[Hooks],
) -> int:
    """Answer requests until SIGTERM or SIGINT, then close the model; raises `ListenError` and `EngineError`.

    `restarts` are those of a supervisor so far by reason, for the metrics. Returns 0 after an orderly stop,
    `ENGINE_DIED`, or 128 and the number of a second signal, which stops at once.
    """
    try:
        taken = listener or listen(config)
        limits = dataclasses.replace(image_limits or model.image_limits, on_white=model.image_limits.on_white)
        decoders = decoding(config, limits)
        with json_lines(sys.stdout), library_messages(), decoders as images:  # decoders inherit stderr
            return run(create_app(model, config, images, restarts), config, taken, **hooks)
    finally:
        model.close(drain=False)  # accepted requests have ended or were cancelled


@contextlib.contextmanager
def decoding(config: ServerConfig, limits: ImageLimits) -> Iterator[RequestImages]:
    """Run the processes that decode images, if configured, for the time of a block; raises if they do not start."""
    workers = default_workers() if config.image_workers is None else config.image_workers
    if not workers:
        log("images are decoded in this process: a hostile one can stop the server", workers=0)
        yield RequestImages()
        return
    with contextlib.closing(DecodePool(limits, workers)) as pool:
        yield RequestImages(pool)


def run(app: Starlette, config: ServerConfig, listener: socket.socket, **hooks: Unpack[Hooks]) -> int:
    """Serve an application from `create_app`; arguments and result as of `serve`. Changes limits of the process."""
    if (fitting := allow_files(config.max_connections)) < config.max_connections:
        LOGGER.warning("too few files may be open (ulimit -Hn)", extra={"fields": {"max_connections": fitting}})
        config = dataclasses.replace(config, max_connections=fitting)
    ignore_pillow_warnings()
    warnings.filterwarnings("ignore", category=SeveralNamesWarning)  # clients do not see it
    server = DrainingServer(app, config, **hooks)
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # has no descriptor
            _copy(sys.stderr.fileno())  # while descriptors are free
    with short_collections():
        server.run(sockets=[listener])
    return server.exit_code


def end_process_in(seconds: float) -> None:
    """End this process with exit code 1 seconds after the last call, with all stacks, even if the GIL is held."""
    if sys.stderr is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_copy(sys.stderr.fileno()))


class DrainingServer(uvicorn.Server):
    """uvicorn, with an end that finishes accepted requests; arguments and exit code as of `serve`."""

    def __init__(self, app: Starlette, config: ServerConfig, **hooks: Unpack[Hooks]) -> None:
        self._ingress: Ingress = app.state.ingress
        super().__init__(LimitedConfig(app, config, self._refused, self._ingress.refusal))
        self.exit_code = 0
        self._http: HttpMetrics = getattr(app.state, "http", None) or HttpMetrics()
        self._routes = {getattr(route, "path", None) for route in app.routes}
        self._ticked = math.inf
        self._http.connections.set_function(lambda: len(self.server_state.connections))
        self._limits = config
        self._hooks = hooks
        self._watchdog = hooks.get("watchdog")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
        host, port = (sockets or self.servers[0].sockets)[0].getsockname()[:2]
        log("listening", host=host, port=port)
        if self._watchdog is not None:
            self._watchdog.start()
        if on_start := self._hooks.get("on_start"):
            on_start(host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_CLOSING_S)
        self._engine_died()
        log("stopped", unfinished=self._ingress.limiter.open)

    async def on_tick(self, counter: int) -> bool:
        if self._engine_died() and self._draining is None:
            self._begin_to_drain(_TELLING_S)
        if self._watchdog is not None:
            self._watchdog.loop_turned()
        before, self._ticked = self._ticked, time.monotonic()
        self._http.lag.observe(max(0.0, self._ticked - before - _TICK_S))
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = dict.fromkeys(_SIGNALS, self.handle_exit) | dict.fromkeys(_RELOAD, self._handle_reload)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _refused(self, error: HttpError, id: str, scope: Scope) -> None:
        path, client, key = scope.get("path"), scope.get("client"), key_id(HTTPConnection(scope), self._ingress.config)
        route = str(path) if path in self._routes else UNMATCHED
        log("refused", id=id, route=route, status=error.status, code=error.code, client=client and client[0], key=key)
        self._http.count(route, error.status, error.code, key)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop at the first signal; stop at once at the second."""
        self.stop(sig)

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._reload)

    def _reload(self) -> None:
        read_keys = self._hooks.get("reload")
        if read_keys is None:
            log("keys not reloaded", reason="the server was started without a key file")
            return
        try:
            self._ingress.config.take_keys(read_keys())
        except PhotonliteError as error:
            LOGGER.error("keys not reloaded", extra={"fields": {"reason": str(error)}})
        else:
            log("keys reloaded", keys=len(self._ingress.config.api_keys))

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Do what a signal of this number does; from any thread."""
        if self._loop is None:
            self.should_exit = True
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop, number)

    def _stop(self, number: int) -> None:
        if self._draining is None:
            self._begin_to_drain(self._limits.drain_s)
        else:
            self._abort(number)

    def _engine_died(self) -> bool:
        if self._ingress.model.alive:
            return False
        if self.exit_code == 0:
            self.exit_code = ENGINE_DIED
            fields = {"open": self._ingress.limiter.open, "exit_code": ENGINE_DIED}
            LOGGER.critical("engine died", extra={"fields": fields})
        return True

    def _begin_to_drain(self, seconds: float) -> None:
        self._ingress.draining = True
        if self._watchdog is not None:
            self._watchdog.rest()  # the guard sees to the end
        log("stopping", open=self._ingress.limiter.open, seconds=seconds)
        self._draining = asyncio.create_task(self._drain(seconds))

    async def _drain(self, seconds: float) -> None:
        if guard := self._hooks.get("guard"):
            guard(seconds + _STUCK_S)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._ingress.limiter.settled()
        self.config.timeout_graceful_shutdown = max(_CLOSING_S, math.ceil(until - loop.time()))
        self.should_exit = True

    def _abort(self, number: int) -> None:
        log("aborted", open=self._ingress.limiter.open)
        self.exit_code = 128 + number
        self.should_exit = self.force_exit = True
        self.config.timeout_graceful_shutdown = _CLOSING_S
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()

"""The application for Ray Serve: an ingress, and replicas of the server's application behind it."""

import contextlib
import os
import sys
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final

import ray
import torch
from prometheus_client import generate_latest
from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from starlette.applications import Starlette
from starlette.types import Message, Scope

from photonlite.cli.serve import load_served
from photonlite.engine.build import CPU_BATCH, CUDA_BATCH
from photonlite.images.decode import ignore_pillow_warnings
from photonlite.ray.hosting import HostedApp, UnknownConnectionError
from photonlite.ray.ingress import ReplicaLostError, create_ingress
from photonlite.ray.placement import Target
from photonlite.ray.router import AffinityRouter
from photonlite.ray.settings import RaySettings, ServiceSettings, read_service_settings
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.routes.service import STALLED_S
from photonlite.server.run import decoding
from photonlite.server.transport.logs import LOGGER, json_lines, log
from photonlite.server.watchdog import ENGINE_DIED, HANG_S, Watchdog
from photonlite.skills.names import SeveralNamesWarning

_LOST: Final = (
    *(RayActorError, NodeDiedError, ObjectLostError, WorkerCrashedError),
    *(DeploymentUnavailableError, ReplicaUnavailableError, UnknownConnectionError),
)
_HEALTH_PERIOD_S: Final = 5.0
_METRICS_S: Final = 10.0  # seconds in which replicas must have given their metrics
_SPARE: Final = 64  # requests beyond the server's own limits, which answers them: health, metrics, messages of sockets


class EngineReplica:
    """One engine behind the server's application. Its process ends if it dies or hangs; Serve starts another one."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.name = serve.get_replica_context().replica_id.unique_id
        ignore_pillow_warnings()
        warnings.filterwarnings("ignore", category=SeveralNamesWarning)  # clients do not see it
        served = settings.serve
        with contextlib.ExitStack() as stack:
            stack.enter_context(json_lines(sys.stdout))
            self._model = load_served(served)
            stack.callback(self._model.close, drain=False)
            images = stack.enter_context(decoding(served.server, served.images))
            self._app = create_app(self._model, served.server, images)
            self._hosted = HostedApp(self._app)
            self._resources = stack.pop_all()
        hang_s = served.server.hang_s or HANG_S[self._model.device.type]
        Watchdog(self._model, hang_s, loop=False).start()
        log("replica started", replica=self.name, model=self._model.name)

    async def answer(self, target: Target, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
        async with contextlib.aclosing(self._hosted.answer(scope, body)) as batches:
            async for batch in batches:
                self._check_engine()
                yield batch

    async def connect(self, target: Target, scope: Scope, connection: str) -> AsyncGenerator[Any, None]:
        """Serve a WebSocket; yields the replica's name first, to which messages are pushed."""
        yield self.name
        async with contextlib.aclosing(self._hosted.connect(scope, connection)) as batches:
            async for batch in batches:
                yield batch

    async def push(self, target: Target, connection: str, message: Message) -> None:
        self._hosted.push(connection, message)

    async def metrics(self) -> tuple[str, str]:
        return self.name, generate_latest(self._app.state.http.registry).decode()

    def check_health(self) -> None:
        self._check_engine()  # one that hangs is the watchdog's

    def _check_engine(self) -> None:
        """End the process if the engine has died: requests whose answers have not begun go to other replicas."""
        if not self._model.alive:
            LOGGER.critical("engine died", extra={"fields": {"replica": self.name, "exit_code": ENGINE_DIED}})
            os._exit(ENGINE_DIED)

    def __del__(self) -> None:
        """Called by Serve when the replica has drained."""
        if hasattr(self, "_resources"):
            self._resources.close()


class IngressReplica:
    """A process of the ingress, as Ray Serve runs it."""

    def __init__(self, engines: Any, config: ServerConfig, replicas: int) -> None:
        self._logs = contextlib.ExitStack()
        self._logs.enter_context(json_lines(sys.stdout))
        self._app = create_ingress(RayEngines(engines), config, replicas)

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._app

    def __del__(self) -> None:
        if hasattr(self, "_logs"):
            self._logs.close()


class RayEngines:
    """The replicas behind a handle of Ray Serve: `ingress.Engines`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._answer, self._connect = (handle.options(method_name=name, stream=True) for name in ("answer", "connect"))
        self._push = handle.options(method_name="push")
        self._homes: dict[str, str] = {}  # replicas of open WebSockets

    async def answer(self, key: str | None, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
        async with contextlib.aclosing(_stream(self._answer.remote(Target(key), scope, body))) as batches:
            async for batch in batches:
                yield batch

    async def connect(self, scope: Scope, connection: str) -> AsyncGenerator[list[Message], None]:
        async with contextlib.aclosing(_stream(self._connect.remote(Target(), scope, connection))) as batches:
            try:
                async for batch in batches:
                    if isinstance(batch, str):
                        self._homes[connection] = batch
                    else:
                        yield batch
            finally:
                self._homes.pop(connection, None)

    async def push(self, connection: str, message: Message) -> None:
        with _losses():
            await self._push.remote(Target(replica=self._homes.get(connection)), connection, message)

    async def metrics(self) -> Mapping[str, str]:
        with _losses():
            pages = await self._handle.broadcast("metrics").results_async(timeout_s=_METRICS_S, return_exceptions=True)
        return dict(page for page in pages if not isinstance(page, BaseException))


async def _stream(response: Any) -> AsyncGenerator[Any, None]:
    """Yield what a replica yields; closing the generator cancels its work."""
    ended = False
    try:
        with _losses():
            async for batch in response:
                yield batch
        ended = True
    finally:
        if not ended:
            response.cancel()


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except _LOST as cause:
        raise ReplicaLostError(str(cause).partition("\n")[0]) from cause


def build(settings: Mapping[str, Any] | None = None) -> serve.Application:
    """Return the application, for `serve run`, `serve.run` or a Serve config file.

    Args:
        settings: By name as in the TOML file of `photonlite serve`, with those of `RaySettings`; text is read as on a
            command line. What is left out comes from environment variables and the file `PHOTONLITE_CONFIG`.

    Raises:
        SettingsError: A name is unknown or a value out of range.
        InputError: A file cannot be read.
    """
    read = read_service_settings(settings or {})
    server, chosen = read.serve.server, read.ray
    most = 2 * server.max_open + server.max_sockets + _SPARE
    engines = serve.deployment(EngineReplica).options(
        name="engine",
        max_ongoing_requests=most,
        ray_actor_options={"num_cpus": chosen.cpus, "num_gpus": _cards(read)},
        request_router_config=RequestRouterConfig(
            request_router_class=AffinityRouter,
            request_router_kwargs={
                "load_factor": chosen.load_factor,
                "least_load": chosen.least_load or _together(read),
            },
        ),
        **_number(read),
        **_ends(server.drain_s),
    )
    ingress = serve.deployment(serve.ingress()(IngressReplica)).options(
        name="ingress",
        num_replicas=chosen.ingresses,
        max_ongoing_requests=most * chosen.most,
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,  # a new one starts before an old one stops
        **_ends(server.deadline_s + server.drain_s),  # replicas may take as long as that, and need it to answer
    )
    return ingress.bind(engines.bind(read), server, chosen.most)


def _number(read: ServiceSettings) -> dict[str, Any]:
    chosen: RaySettings = read.ray
    if chosen.most == chosen.replicas:
        return {"num_replicas": chosen.replicas}
    scaling = AutoscalingConfig(
        min_replicas=chosen.replicas,
        max_replicas=chosen.most,
        target_ongoing_requests=chosen.target_open or max(1.0, _together(read) / 2),
    )
    return {"autoscaling_config": scaling}


def _together(read: ServiceSettings) -> int:
    """Return how many requests a replica decodes together."""
    return read.serve.engine.max_batch or (CUDA_BATCH if _cards(read) else CPU_BATCH)


def _ends(drain_s: float) -> dict[str, float]:
    """How a replica ends: it finishes what is open first, and is given up if it shows no sign of life."""
    return {
        "graceful_shutdown_timeout_s": drain_s,
        "graceful_shutdown_wait_loop_s": 1.0,
        "health_check_period_s": _HEALTH_PERIOD_S,
        "health_check_timeout_s": STALLED_S,
    }


def _cards(read: ServiceSettings) -> float:
    if read.ray.gpus is not None:
        return read.ray.gpus
    if read.serve.choice.device == "cpu":
        return 0.0
    there = ray.cluster_resources().get("GPU", 0) if ray.is_initialized() else torch.cuda.is_available()
    return 1.0 if there else 0.0

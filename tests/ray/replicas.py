"""Replicas in the test's own process, which can be lost at any moment: what `RayEngines` is with Ray."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Scope

from photonlite.ray.hosting import HostedApp, UnknownConnectionError
from photonlite.ray.ingress import ReplicaLostError
from photonlite.ray.placement import Placement
from photonlite.server.config import ServerConfig
from photonlite.server.ingress import Ingress
from photonlite.server.link import NO_RESTARTS
from photonlite.server.metrics import HttpMetrics
from photonlite.server.routes import moondream, realtime, service
from photonlite.server.transport.middleware import ErrorResponses
from tests.server.fake import FakeModel


def light_app(fake: FakeModel, config: ServerConfig) -> Starlette:
    """Return the server's application without documents, which take a quarter of a second to build."""
    ingress = Ingress(config, fake)
    routes = [
        *moondream.routes(ingress),
        *realtime.routes(ingress),
        *service.routes(ingress, HttpMetrics(), NO_RESTARTS),
    ]
    return Starlette(routes=routes, middleware=[Middleware(ErrorResponses, config=config)])


class LocalEngines:
    """Places requests as the router does.

    Attributes:
        placement: Of requests to replicas.
        lose_after: Messages of an answer after which its replica is lost, by the replica's name.
        asked: Names of the replicas that were asked, in order.
    """

    def __init__(self, **apps: ASGIApp) -> None:
        self.placement = Placement(load_factor=1.5, least_load=4)
        self.placement.set_replicas(apps)
        self.lose_after: dict[str, int] = {}
        self.asked: list[str] = []
        self._hosts = {name: HostedApp(app) for name, app in apps.items()}
        self._homes: dict[str, str] = {}

    def lose(self, name: str) -> None:
        """Take a replica off: it has died, or stops."""
        self.placement.set_replicas(set(self.placement.open) - {name})

    async def answer(self, key: str | None, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
        name = self._place(key)
        async with aclosing(self._until_lost(name, self._hosts[name].answer(scope, body))) as batches:
            async for batch in batches:
                yield batch

    async def connect(self, scope: Scope, connection: str) -> AsyncGenerator[list[Message], None]:
        name = self._homes[connection] = self._place(None)
        async with aclosing(self._until_lost(name, self._hosts[name].connect(scope, connection))) as batches:
            async for batch in batches:
                yield batch

    async def push(self, connection: str, message: Message) -> None:
        home = self._homes[connection]
        try:
            if home not in self.placement.open:
                raise UnknownConnectionError(home)
            self._hosts[home].push(connection, message)
        except UnknownConnectionError as cause:
            raise ReplicaLostError("it takes no more messages") from cause

    async def metrics(self) -> dict[str, str]:
        return {name: "# TYPE up gauge\nup 1.0\n" for name in self.placement.open}

    def _place(self, key: str | None) -> str:
        order = self.placement.order(key)
        if not order:
            raise ReplicaLostError("there is none")
        self.asked.append(order[0])
        return order[0]

    async def _until_lost(
        self, name: str, batches: AsyncGenerator[list[Message], None]
    ) -> AsyncGenerator[list[Message], None]:
        self.placement.began(name)
        seen = 0
        try:
            async with aclosing(batches):
                async for batch in batches:
                    for message in batch:
                        if self.lose_after.get(name) == seen:
                            self.lose(name)
                            raise ReplicaLostError("killed") from ConnectionError()
                        yield [message]
                        seen += 1
                        await asyncio.sleep(0)
        finally:
            self.placement.ended(name)

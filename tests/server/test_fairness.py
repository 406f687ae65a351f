"""Callers that ask for too much, in virtual time: what becomes of them, and of others."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import Request

from photonlite.server.calls import Call
from photonlite.server.config import ServerConfig
from photonlite.server.errors import to_http
from photonlite.server.ingress import Ingress
from tests.server.virtual import EngineModel, run_virtual

CAPACITY = {0.0: 1.0, 0.9: 8 / 1.7}
"""Lone seconds of work that eight calls together get done in a second, by `EngineModel.batching`."""


@dataclass
class Site:
    """A server whose engine works in virtual time, and what became of the requests that it was sent.

    Attributes:
        door: Its ingress.
        ends: By key: when a request began, how many seconds it took, its status, and its Retry-After.
    """

    door: Ingress
    ends: dict[str, list[tuple[float, float, int, str | None]]] = field(default_factory=dict)

    @classmethod
    def make(cls, batching: float = 0.0) -> "Site":
        config = ServerConfig(api_keys=("greedy", "light"))
        return cls(Ingress(config, EngineModel(batching=batching), asyncio.get_running_loop().time))

    async def ask(self, key: str, seconds: float) -> str | None:
        """Ask for so many seconds of work; returns Retry-After."""
        loop = asyncio.get_running_loop()
        begun, status, retry = loop.time(), 200, None
        request = Request({**SCOPE, "headers": [(b"x-moondream-auth", key.encode())]}, stay)
        call = Call("query", None, {"question": f"{seconds}", "settings": {"max_tokens": 512}})
        try:
            async with await self.door.admit(request) as permit:
                permit.enter()
                await self.door.answer(call, permit, request)
        except Exception as error:
            failure = to_http(error)
            status, retry = failure.status, failure.headers.get("Retry-After")
            assert status in (429, 504), failure.message
        self.ends.setdefault(key, []).append((begun, loop.time() - begun, status, retry))
        return retry

    def answered(self, key: str, since: float = 0.0) -> list[float]:
        """Seconds that answers took whose requests came since then, the shortest first."""
        return sorted(took for begun, took, status, _ in self.ends[key] if status == 200 and begun >= since)

    def mean(self, key: str) -> float:
        took = self.answered(key, SETTLED)
        return sum(took) / len(took)


SCOPE = {"type": "http", "method": "POST", "path": "/", "client": ("10.0.0.1", 1)}
SETTLED = 3.0


async def stay() -> Any:
    """A client that does not leave."""
    await asyncio.get_running_loop().create_future()


async def arrive(site: Site, key: str, rate: float, seconds: float, work: Callable[[random.Random], float]) -> None:
    """Requests that come whether others have been answered or not."""
    chance, loop = random.Random(key), asyncio.get_running_loop()
    until = loop.time() + seconds
    async with asyncio.TaskGroup() as group:
        while loop.time() < until:
            group.create_task(site.ask(key, work(chance)))
            await asyncio.sleep(chance.expovariate(rate))


async def repeat(site: Site, key: str, clients: int, seconds: float, work: float) -> None:
    """Clients that ask again as soon as they have their answer, or may try again."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds

    async def client() -> None:
        while loop.time() < until:
            await asyncio.sleep(float(await site.ask(key, work) or 0))

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


def play(batching: float, *loads: Callable[[Site], Coroutine[Any, Any, None]]) -> Site:
    async def main() -> Site:
        site = Site.make(batching)
        async with asyncio.TaskGroup() as group:
            for load in loads:
                group.create_task(load(site))
        return site

    found = run_virtual(main())
    assert isinstance(found, Site)
    return found


def flood(rate: float) -> Callable[[Site], Coroutine[Any, Any, None]]:
    return lambda site: arrive(site, "greedy", rate, 10, lambda _: 0.2)


def crowd(clients: int) -> Callable[[Site], Coroutine[Any, Any, None]]:
    return lambda site: repeat(site, "greedy", clients, 10, 0.2)


@pytest.mark.long
@pytest.mark.parametrize("batching", CAPACITY)
@pytest.mark.parametrize("greedy", ["eight times as much as there is", "300 clients"])
def test_a_greedy_caller_at_most_doubles_the_wait_of_another(batching: float, greedy: str) -> None:
    def light(site: Site) -> Coroutine[Any, Any, None]:
        return repeat(site, "light", 1, 10, 0.2)

    other = crowd(300) if greedy == "300 clients" else flood(40 * CAPACITY[batching])
    alone, beside = play(batching, light), play(batching, light, other)
    assert beside.mean("light") <= 2 * alone.mean("light") * 1.01
    assert not any(status == 429 for _, _, status, _ in beside.ends["light"])


@pytest.mark.parametrize("batching", CAPACITY)
def test_another_caller_gets_its_share_beside_a_greedy_one(batching: float) -> None:
    def busy(site: Site) -> Coroutine[Any, Any, None]:
        return repeat(site, "light", 16, 10, 0.2)

    alone, beside = play(batching, busy), play(batching, busy, flood(40 * CAPACITY[batching]))
    fair = len(alone.answered("light")) / 2
    assert len(beside.answered("light")) >= 0.9 * fair
    assert len(beside.answered("light")) + len(beside.answered("greedy")) >= 0.9 * 2 * fair
    assert beside.mean("light") <= 2 * alone.mean("light") * 1.1


def test_a_greedy_caller_gets_what_others_leave() -> None:
    def light(site: Site) -> Coroutine[Any, Any, None]:
        return arrive(site, "light", 1, 10, lambda _: 0.2)

    site = play(0.0, light, flood(40))
    done = len(site.answered("light")) + len(site.answered("greedy"))
    last = max(begun + took for ends in site.ends.values() for begun, took, status, _ in ends if status == 200)
    assert done >= 0.98 * last / 0.2


LENGTHS: dict[str, Callable[[random.Random], float]] = {
    "equal": lambda _: 2.0,
    "mixed": lambda chance: chance.choice((0.5, 3.5)),
    "exponential": lambda chance: chance.expovariate(0.5),
}


@pytest.mark.parametrize("length", LENGTHS)
def test_accepted_requests_are_answered_under_tenfold_overload(length: str) -> None:
    async def load(site: Site) -> None:
        await arrive(site, "greedy", 0.3, 300, LENGTHS[length])
        site.ends.clear()
        await arrive(site, "greedy", 5, 200, LENGTHS[length])

    ends = play(0.0, load).ends["greedy"]
    accepted = [status for _, _, status, _ in ends if status != 429]
    assert accepted.count(504) <= 0.02 * len(accepted)
    assert accepted.count(200) >= 0.9 * 200 / 2.0
    refused = [(took, retry) for _, took, status, retry in ends if status == 429]
    assert len(refused) > 700
    assert all(took == 0 for took, _ in refused)
    assert len({retry for _, retry in refused}) > 1


def test_retrying_after_retry_after_succeeds_soon() -> None:
    tries = []

    async def main() -> None:
        site = Site.make()
        async with asyncio.TaskGroup() as group:
            group.create_task(arrive(site, "greedy", 5, 100, lambda _: 1.0))
            await asyncio.sleep(100)
            count = 1
            while (retry := await site.ask("greedy", 1.0)) is not None:
                await asyncio.sleep(float(retry))
                count += 1
            tries.append(count)

    run_virtual(main())
    assert tries[0] <= 3


def test_a_temporarily_slow_engine_is_filled_again() -> None:
    async def main() -> None:
        site = Site.make()
        await repeat(site, "greedy", 4, 20, 0.1)
        await repeat(site, "greedy", 8, 20, 7.0)
        before = len(site.answered("greedy"))
        await repeat(site, "greedy", 30, 40, 0.1)
        assert len(site.answered("greedy")) - before >= 0.9 * 40 / 0.1

    run_virtual(main())

"""Refusals of wrong keys wait; the clock and the waiting are the test's."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.limits import callers as module
from photonlite.server.limits.callers import WrongKeyDelay
from photonlite.server.transport.middleware import ErrorResponses


class Door:
    """Refuses every request whose path is not /right; notes how long each refusal had to wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited: list[float] = []
        self.open: asyncio.Event | None = None
        self.keys = WrongKeyDelay(lambda: self.now, self.sleep)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/right":
            raise HttpError(401, "no", code="missing_api_key" if scope["path"] == "/none" else "invalid_api_key")

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        if self.open is not None:
            await self.open.wait()

    async def ask(self, path: str = "/wrong", host: str = "203.0.113.7", kind: str = "http") -> int:
        """Ask through the middleware; returns the status."""
        sent: list[Message] = []
        extensions: dict[str, Any] = {"websocket.http.response": {}}
        scope = {"type": kind, "path": path, "headers": [], "client": (host, 1), "extensions": extensions}

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        await ErrorResponses(self.answer, ServerConfig(), self.keys)(scope, receive, send)
        return int(sent[0]["status"]) if sent else 200


def run(door: Door, *requests: dict[str, Any]) -> list[int]:
    async def ask() -> list[int]:
        return [await door.ask(**request) for request in requests]

    return asyncio.run(ask())


def test_wrong_keys_of_one_address_wait_longer_each_time() -> None:
    door = Door()

    assert set(run(door, *[{}] * 12)) == {401}
    assert door.waited == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


def test_right_keys_and_other_addresses_never_wait() -> None:
    door = Door()
    run(door, *[{}] * 9)
    door.waited.clear()

    statuses = run(door, {"path": "/right"}, {"host": "203.0.113.8"}, {"path": "/none"}, {"path": "/right"})

    assert (statuses, door.waited) == ([200, 401, 401, 200], [])


def test_an_ipv6_network_counts_as_one_address_and_sockets_count() -> None:
    door = Door()
    run(door, *({"host": f"2001:db8:1:1::{number}", "kind": "websocket"} for number in range(4)))

    assert door.waited == [0.25]


def test_wrong_keys_of_a_silent_address_are_forgotten() -> None:
    door = Door()
    run(door, *[{}] * 9)
    door.waited.clear()
    door.now += module._FORGOTTEN_S + 1

    run(door, {})
    assert door.waited == []


def test_the_number_of_remembered_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ADDRESSES", 3)
    door = Door()
    run(door, *({"host": f"203.0.113.{number}"} for number in range(100)))

    assert len(door.keys._tried) == 3


def test_refusals_beyond_the_waiting_limit_are_immediate() -> None:
    async def ask() -> tuple[list[int], dict[str, int]]:
        door = Door()
        door.open = asyncio.Event()
        tasks = [asyncio.create_task(door.ask()) for _ in range(30)]
        others = [asyncio.create_task(door.ask("/right"))]
        while not (others[0].done() and sum(task.done() for task in tasks) == 30 - module._WAITING):
            await asyncio.sleep(0)
        tasks[-1].cancel()
        door.open.set()
        statuses = await asyncio.gather(*tasks, return_exceptions=True)
        return [status for status in statuses if isinstance(status, int)], door.keys._waiting

    statuses, waiting = asyncio.run(ask())
    assert statuses.count(401) >= module._WAITING
    assert statuses.count(429) >= 10
    assert waiting == {}

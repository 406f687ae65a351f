"""Middleware that makes whoever tries wrong keys wait for the answer, longer each time."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from photonlite.server.errors import HttpError
from photonlite.server.limits.callers import network_of

_FREE: Final = 3
"""Wrong keys in a row that cost no time: somebody has mistyped theirs."""
_FIRST_S: Final = 0.25
_MOST_S: Final = 8.0
_FORGOTTEN_S: Final = 300.0
"""Seconds after which an address begins anew."""
_ADDRESSES: Final = 10_000
"""Addresses that are remembered; beyond that the one whose last wrong key is oldest is forgotten."""
_WAITING: Final = 16
"""Answers to one address that wait at a time: more are refused at once, so that they hold no connections."""


class WrongKeyDelay:
    """Delays refusals of wrong keys, by address. A right key is answered at once, wherever it comes from.

    Args:
        app: What is inside; it raises the refusals.
        clock: Gives seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._sleep = sleep
        self._tried: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request or WebSocket on.

        Raises:
            HttpError: 401, after a while; 429 where too many refusals wait already.
        """
        try:
            await self._app(scope, receive, send)
        except HttpError as error:
            if error.code == "invalid_api_key":
                client = HTTPConnection(scope).client
                await self._delay(network_of(client.host if client else ""))
            raise

    async def _delay(self, address: str) -> None:
        seconds = self._count(address)
        if not seconds:
            return
        waiting = self._waiting.get(address, 0)
        if waiting >= _WAITING:
            headers = {"Retry-After": f"{_MOST_S:.0f}", "Connection": "close"}
            message = "too many wrong API keys came from this address: wait, and send the right one"
            raise HttpError(429, message, code="too_many_wrong_keys", headers=headers)
        self._waiting[address] = waiting + 1
        try:
            await self._sleep(seconds)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]

    def _count(self, address: str) -> float:
        """Count a wrong key, and return for how many seconds its refusal waits."""
        now = self._clock()
        tried, last = self._tried.pop(address, (0, now))
        tried = 1 if now - last > _FORGOTTEN_S else tried + 1
        self._tried[address] = tried, now
        if len(self._tried) > _ADDRESSES:
            self._tried.popitem(last=False)
        if tried <= _FREE:
            return 0.0
        return min(_MOST_S, _FIRST_S * 2.0 ** min(tried - _FREE - 1, 10))

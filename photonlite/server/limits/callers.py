"""Callers: API keys, the page a request was sent from, and the delay of refusals of wrong keys."""

import asyncio
import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError

PROTOCOL = "photonlite"
"""Subprotocol of the real-time socket."""

KEY_PROTOCOL = "photonlite-key."
"""Prefix of the subprotocol that holds a key: a page cannot set headers of a WebSocket."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One of those between whom the server is divided.

    Attributes:
        id: The tenant, or the address where the server has no keys.
        weight: Share relative to other callers, from the key file.
        tenant: Hash of the key; None where the server has no keys.
    """

    id: str
    weight: float = 1.0
    tenant: str | None = None


def identify(connection: HTTPConnection, config: ServerConfig) -> Caller:
    """Return the caller of a request; raises as `check_key`."""
    tenant = check_key(connection, config)
    if tenant is None:
        return Caller(network_of(connection.client.host if connection.client else ""))
    return Caller(tenant, config.key_weights.get(_key_of(connection) or "", 1.0), tenant)


def check_key(connection: HTTPConnection, config: ServerConfig) -> str | None:
    """Return the tenant of a request; None where the server has no keys.

    Raises:
        HttpError: 401, the key is missing or wrong.
    """
    key = _key_of(connection)
    if not config.accepts(key):
        reason = "there is no API key" if key is None else "the API key is unknown"
        raise HttpError(
            401,
            f"{reason}: send one of the server's as X-Moondream-Auth, or as Authorization: Bearer",
            code="missing_api_key" if key is None else "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return hashlib.sha256(key.encode()).hexdigest() if config.api_keys and key is not None else None


def chosen_protocol(offered: Sequence[str]) -> str | None:
    """Choose one of a client's subprotocols, `PROTOCOL` or its key: a browser gives up unless one is chosen."""
    if PROTOCOL in offered:
        return PROTOCOL
    return next((protocol for protocol in offered if protocol.startswith(KEY_PROTOCOL)), None)


def check_origin(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse requests that pages of other sites send to a server on the user's machine or network.

    Raises:
        HttpError: 403, the page's origin is neither this server nor in `cors_origins`.
    """
    origin = connection.headers.get("origin")
    if origin is None or "*" in config.cors_origins or origin in config.cors_origins:
        return
    try:
        same = urlsplit(origin).netloc.lower() == connection.headers.get("host", "").lower()
    except ValueError:  # brackets that are no IPv6 address
        same = False
    if not same:
        message = f"pages of {origin[:100]!r} may not call this server: name the origin when starting it"
        raise HttpError(403, message, code="foreign_origin")


def network_of(host: str) -> str:
    """Return an IPv4 address unchanged, and an IPv6 address's /64 network, all of which one client has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def _key_of(connection: HTTPConnection) -> str | None:
    if key := connection.headers.get("x-moondream-auth"):
        return key.strip()
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    if connection.scope["type"] == "websocket":
        offered = map(str.strip, connection.headers.get("sec-websocket-protocol", "").split(","))
        return next((one.removeprefix(KEY_PROTOCOL) for one in offered if one.startswith(KEY_PROTOCOL)), None)
    return None


_FREE: Final = 3
"""Wrong keys in a row that are refused at once: typing errors."""
_FIRST_S: Final = 0.25
_MOST_S: Final = 8.0
_FORGOTTEN_S: Final = 300.0
"""Seconds after which an address's wrong keys are forgotten."""
_ADDRESSES: Final = 10_000
"""Addresses that are remembered, those with the latest wrong keys."""
_WAITING: Final = 16
"""Refusals to one address that wait at a time; more are sent at once, so that they hold no connections."""


class WrongKeyDelay:
    """Delays refusals of wrong keys by address, longer each time; requests with a right key are never delayed."""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._sleep = sleep
        self._tried: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: dict[str, int] = {}

    async def wait(self, connection: HTTPConnection) -> None:
        """Wait before a wrong key is refused.

        Raises:
            HttpError: 429, too many refusals to this address wait already.
        """
        address = network_of(connection.client.host if connection.client else "")
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
        """Count a wrong key; returns the seconds that its refusal waits."""
        now = self._clock()
        tried, last = self._tried.pop(address, (0, now))
        tried = 1 if now - last > _FORGOTTEN_S else tried + 1
        self._tried[address] = tried, now
        if len(self._tried) > _ADDRESSES:
            self._tried.popitem(last=False)
        if tried <= _FREE:
            return 0.0
        return min(_MOST_S, _FIRST_S * 2.0 ** min(tried - _FREE - 1, 10))

"""Callers: API keys, the names of the server, the page a request was sent from, and the delay of wrong keys."""

import asyncio
import functools
import hashlib
import ipaddress
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError

PROTOCOL = "photonlite"  # subprotocol of the real-time socket
KEY_PROTOCOL = "photonlite-key."  # prefix of the subprotocol that holds a key: a page cannot set headers of a WebSocket
_HOST: Final = re.compile(r"(\[[0-9a-f:.%]+\]|[^\[\]:]*)(?::\d*)?", re.I)


@dataclass(frozen=True, slots=True)
class Caller:
    """One who shares the server by weight; `tenant` and `id` are the key's hash, without keys None and the address."""

    id: str
    weight: float = 1.0
    tenant: str | None = None


def identify(connection: HTTPConnection, config: ServerConfig) -> Caller:
    """Return the caller of a request; raises 401 if its key is missing or wrong."""
    key = _key_of(connection)
    if not config.accepts(key):
        reason = "there is no API key" if key is None else "the API key is unknown"
        raise HttpError(
            401,
            f"{reason}: send one of the server's as X-Moondream-Auth, or as Authorization: Bearer",
            code="missing_api_key" if key is None else "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not config.api_keys or key is None:
        return Caller(network_of(connection.client))
    tenant = hashlib.sha256(key.encode()).hexdigest()
    return Caller(tenant, config.key_weights.get(key, 1.0), tenant)


def caller_of(connection: HTTPConnection, config: ServerConfig) -> Caller:
    """Return the caller of a request, or its address alone if its key is missing or wrong."""
    try:
        return identify(connection, config)
    except HttpError:
        return Caller(network_of(connection.client))


def key_id(connection: HTTPConnection, config: ServerConfig) -> str | None:
    """Return what stands for a request's key in logs and metrics; None without a key of the server's."""
    tenant = caller_of(connection, config).tenant
    return tenant and tenant[:8]


def check_metrics(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse `/metrics`, which show what all callers do, to one of several keys: 403, unless it is to read them."""
    identify(connection, config)
    if len(config.api_keys) > 1 and _key_of(connection) not in config.metrics_keys:
        message = "the metrics show what other keys do: write `metrics` behind a key of the key file that may read them"
        raise HttpError(403, message, code="metrics_refused")


def check_admin(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse what changes the server to all keys that may not: 403, also where there are no keys."""
    identify(connection, config)
    if _key_of(connection) not in config.admin_keys:
        message = "loading adapters takes a key for it: write `admin` behind one of the key file (--api-key-file)"
        raise HttpError(403, message, code="admin_refused")


def chosen_protocol(offered: Sequence[str]) -> str | None:
    """Choose one of a client's subprotocols, `PROTOCOL` or its key: a browser gives up unless one is chosen."""
    if PROTOCOL in offered:
        return PROTOCOL
    return next((protocol for protocol in offered if protocol.startswith(KEY_PROTOCOL)), None)


def check_host(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse a request whose Host is not the server's: 421, which prevents DNS rebinding.

    A page can resolve its own name to an address of the server; the browser then sends requests here that pass CORS and
    the check of origins. A server with keys is safe, since the page would have to know one. An IP address as Host is
    safe, too: no page can resolve it to another one.
    """
    host = connection.headers.get("host")  # HTTP/1.0 has none, and no browser speaks it
    if (config.api_keys and not config.allow_hosts) or host is None:
        return
    parts = _HOST.fullmatch(host.strip())
    name = "" if parts is None else parts[1].strip("[]").lower().removesuffix(".")
    here = connection.scope.get("server") or ("localhost",)  # the connection's own address
    if name and name in ("localhost", here[0], *map(str.lower, (config.host, *config.allow_hosts))):
        return
    with suppress(ValueError):
        if ipaddress.ip_address(name).is_loopback or not config.is_local:
            return
    message = f"this server does not answer as {host[:100]!r}: ask for its IP address, or start it with --allow-host"
    raise HttpError(421, message, code="unknown_host")


def check_origin(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse requests that pages of other sites send to a server on the user's machine or network: 403."""
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


def network_of(client: Sequence[Any] | None) -> str:
    """Return the address of a connection's client; of an IPv6 address the /64 network, all of which one client has."""
    return _network_of(str(client[0]) if client else "")


@functools.lru_cache(10_000)
def _network_of(host: str) -> str:
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


_FREE: Final = 3  # wrong keys in a row that are refused at once: typing errors
_FIRST_S: Final = 0.25
_MOST_S: Final = 8.0
_FORGOTTEN_S: Final = 300.0  # seconds after which an address's wrong keys are forgotten
_ADDRESSES: Final = 10_000  # addresses that are remembered, those with the latest wrong keys
_WAITING: Final = 16  # refusals to one address that wait; more are sent at once, so that they hold no connections


class WrongKeyDelay:
    """Delays refusals of wrong keys by address, longer each time; requests with a right key are never delayed."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._tried: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    async def wait(self, connection: HTTPConnection) -> None:
        """Wait before a wrong key is refused; raises 429 if too many refusals to this address wait already."""
        address = network_of(connection.client)
        seconds = self._count(address)
        if not seconds:
            return
        if self._waiting[address] >= _WAITING:
            headers = {"Retry-After": f"{_MOST_S:.0f}", "Connection": "close"}
            message = "too many wrong API keys came from this address: wait, and send the right one"
            raise HttpError(429, message, code="too_many_wrong_keys", headers=headers)
        self._waiting[address] += 1
        try:
            await self._sleep(seconds)
        finally:
            self._waiting -= Counter((address,))  # drops an address at zero

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

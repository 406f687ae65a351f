"""Who asks: the key that came with a request, the caller it stands for, and the page it was sent from."""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError

PROTOCOL = "photonlite"
"""The subprotocol of the real-time socket."""

KEY_PROTOCOL = "photonlite-key."
"""A page cannot set headers of a WebSocket: its key comes as a subprotocol that begins like this."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One of those between whom the server is divided.

    Attributes:
        id: The tenant, or the address where the server has no keys.
        weight: Its part of what several callers share; 1 unless the key file says otherwise.
        tenant: Stands for its key; None where the server has no keys.
    """

    id: str
    weight: float = 1.0
    tenant: str | None = None


def identify(connection: HTTPConnection, config: ServerConfig) -> Caller:
    """Return who asks.

    Raises:
        HttpError: 401, the key is missing or wrong.
    """
    tenant = check_key(connection, config)
    if tenant is None:
        return Caller(network_of(connection.client.host if connection.client else ""))
    return Caller(tenant, config.key_weights.get(_key_of(connection) or "", 1.0), tenant)


def check_key(connection: HTTPConnection, config: ServerConfig) -> str | None:
    """Tell which tenant asks.

    Returns:
        What stands for its key; None where the server has no keys.

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
    """Choose among a client's subprotocols: a browser gives up unless one of its own is chosen.

    Args:
        offered: In the client's order.

    Returns:
        `PROTOCOL`, or a key, which says nothing new to the client; None where it offers neither.
    """
    if PROTOCOL in offered:
        return PROTOCOL
    return next((protocol for protocol in offered if protocol.startswith(KEY_PROTOCOL)), None)


def check_origin(connection: HTTPConnection, config: ServerConfig) -> None:
    """Refuse what another site's page sends without the user's knowledge to a server on their machine or network.

    Raises:
        HttpError: 403, the page's origin is neither this server nor named in `cors_origins`.
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
    """Return what an address counts as: itself, and of IPv6 the network of 64 bits, which one client has whole."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False)) if address.ipv4_mapped is None else host
    return host


def _key_of(connection: HTTPConnection) -> str | None:
    if key := connection.headers.get("x-moondream-auth"):
        return key.strip()
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    if connection.scope["type"] == "websocket":
        offered = connection.headers.get("sec-websocket-protocol", "").split(",")
        for protocol in map(str.strip, offered):
            if protocol.startswith(KEY_PROTOCOL):
                return protocol.removeprefix(KEY_PROTOCOL)
    return None

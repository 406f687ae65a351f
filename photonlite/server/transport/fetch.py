"""Fetches images for clients, only from hosts that the server's owner has named.

A client that chooses the URL must not reach through the server what only the server can reach: https only, no redirect,
no other port, and no address of a private network, whatever the name resolves to. The address that was checked is the
one that is connected to.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

import h11

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError

PORT = 443
_CHUNK = 65_536
_TRANSLATED = [
    ipaddress.ip_network(network)
    for network in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0:0/96",  # IPv4-translated (SIIT)
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64, local
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
    )
]
"""Prefixes that a gateway translates to IPv4: web hosts are not there, and the gateway may lead inside."""

_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # middle of an IPv6 address, bits 64 to 95, whose last 32 bits are an IPv4 address


def check_url(url: str, hosts: tuple[str, ...]) -> SplitResult:
    """Parse a URL; every URL but https ones of named hosts is refused with 422."""
    if not hosts:
        raise _refused("images are not fetched from URLs: send image_url as data:image/jpeg;base64,...")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as cause:
        raise _refused("the URL of the image cannot be read") from cause
    if parts.scheme.lower() != "https" or port not in (None, PORT) or parts.username is not None:
        raise _refused("images are fetched over https only, without port, user and password")
    if (parts.hostname or "") not in map(str.lower, hosts):
        raise _refused(f"images are not fetched from this host, only from {', '.join(hosts)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise _refused("the URL of the image has characters that must be percent-encoded")
    return parts


async def resolve(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def connect(address: str, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an address with TLS; raises OSError, also if the certificate is not that of the host."""
    context = ssl.create_default_context()
    return await asyncio.open_connection(address, PORT, ssl=context, server_hostname=host, limit=_CHUNK)


async def fetch(url: str, config: ServerConfig, hold: Callable[[int], None]) -> bytes:
    """Fetch an image; `hold` reserves memory for the bytes so far, or raises. Raises 413, and 422 if it fails."""
    parts = check_url(url, config.url_hosts)
    timeout_s = config.body_timeout_s
    host = parts.hostname or ""
    try:
        async with asyncio.timeout(timeout_s):
            address = _public(await resolve(host))
            reader, writer = await connect(address, host)
            try:
                return await _get(reader, writer, parts, config.max_body_bytes, hold)
            finally:
                writer.close()
    except TimeoutError as cause:
        raise _failed(f"{host} did not give it within {timeout_s:g} s", limit="body_timeout_s") from cause
    except (OSError, h11.ProtocolError) as cause:
        raise _failed(f"{host} cannot be asked for it") from cause


def is_public(address: str) -> bool:
    """Whether an address is on the public internet, and not a private one in another notation."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:  # the same socket as with the IPv4 address
            return is_public(str(parsed.ipv4_mapped))
        if any(parsed in network for network in _TRANSLATED) or int(parsed) >> 32 & 0xFFFFFFFF in _ISATAP:
            return False
    return parsed.is_global and not parsed.is_multicast


def _public(addresses: list[str]) -> str:
    if not addresses or not all(map(is_public, addresses)):
        raise _refused("the host of the image has no address, or one on a private network")
    return addresses[0]


async def _get(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parts: SplitResult,
    max_bytes: int,
    hold: Callable[[int], None],
) -> bytes:
    connection = h11.Connection(h11.CLIENT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.hostname or "", "Accept": "image/*", "Accept-Encoding": "identity"}
    headers |= {"User-Agent": "photonlite", "Connection": "close"}
    for event in (h11.Request(method="GET", target=target, headers=list(headers.items())), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    data = bytearray()
    while True:
        received = connection.next_event()
        if received is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(received, h11.Response):
            _check_response(received, max_bytes)
        elif isinstance(received, h11.Data):
            size = len(data) + len(received.data)
            _check_size(size, max_bytes)
            hold(2 * size)  # a growing array copies itself
            data += received.data
        elif isinstance(received, h11.EndOfMessage):
            return bytes(data)
        elif not isinstance(received, h11.InformationalResponse):
            raise _failed("the connection ended early")


def _check_response(response: h11.Response, max_bytes: int) -> None:
    if 300 <= response.status_code < 400:
        raise _failed("its host redirects, which is not followed: name the final URL")
    if response.status_code != 200:
        raise _failed(f"its host answered {response.status_code}")
    for name, value in response.headers:
        if name == b"content-length":  # h11 has checked that it is a number
            _check_size(int(value), max_bytes)


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        message = f"the image behind the URL is over the limit of {max_bytes} bytes"
        raise HttpError(413, message, code="image_too_large", limit="max_body_bytes")


def _refused(message: str) -> HttpError:
    return HttpError(422, message, code="remote_image_refused")


def _failed(reason: str, limit: str | None = None) -> HttpError:
    return HttpError(422, f"the image could not be fetched: {reason}", code="image_fetch_failed", limit=limit)

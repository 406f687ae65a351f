"""Fetches images from URLs, for callers who allow that.

A URL must not reach what only this machine can reach: https only, no other port, and no address of a private network,
whatever the name resolves to. The address that was checked is the one that is connected to, and a redirect is checked
as a URL is.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from photonlite.errors import ImageFetchError, ImageTooLargeError, ImageUrlError, ModelError

PORT: Final = 443
FETCH_S: Final = 20.0
"""Seconds in which a host must give an image, redirects included."""

MAX_REDIRECTS: Final = 5
_AT_ONCE: Final = 8
_CHUNK = 65_536
# Reading the system's certificates for each URL would stop the event loop.
_tls: Final = functools.cache(ssl.create_default_context)
_PARSED: Final = 4096  # bytes that are parsed at once: they may be hundreds of chunks of HTTP
_UNICAST = ipaddress.ip_network("2000::/3")  # the only global unicast addresses that are assigned (RFC 4291)
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


class ImageFetcher:
    """Fetches images from public hosts on an event loop of its own, whose thread the first URL starts."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._closed = False

    def submit(self, url: str, hold: Callable[[int], None] = lambda size: None) -> Future[bytes]:
        """Fetch an image; cancelling the future closes the connection. ModelError once this is closed.

        `hold` is as in `fetch`.
        """
        with self._lock:
            if self._closed:
                raise ModelError("the model is closed: load it again")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                try:
                    threading.Thread(target=self._run, args=(loop,), name="photonlite-fetch", daemon=True).start()
                except RuntimeError:  # there is no thread left: the next URL tries again
                    loop.close()
                    raise
                self._loop = loop
            return asyncio.run_coroutine_threadsafe(self._fetch(url, hold), self._loop)

    def close(self) -> None:
        """Cancel what waits and what is being fetched. Closing twice is fine."""
        with self._lock:
            if self._loop is not None and not self._closed:
                self._loop.call_soon_threadsafe(self._closing.set)
            self._closed = True

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # cancels what is left as it ends
            runner.run(self._closing.wait())

    async def _fetch(self, url: str, hold: Callable[[int], None]) -> bytes:
        async with self._slots:
            return await fetch(url, max_bytes=self._max_bytes, timeout_s=FETCH_S, redirects=MAX_REDIRECTS, hold=hold)


def fetch_now(url: str, max_bytes: int) -> bytes:
    """Fetch an image from a public host, on a thread without an event loop; raises as `fetch`."""
    return asyncio.run(fetch(url, max_bytes=max_bytes, timeout_s=FETCH_S, redirects=MAX_REDIRECTS))


def check_url(url: str, hosts: tuple[str, ...] | None) -> SplitResult:
    """Parse a URL; raises an `ImageUrlError` for all but https ones of named hosts, or of any host for None."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as cause:
        raise ImageUrlError("the URL of the image cannot be read") from cause
    if parts.scheme.lower() != "https" or port not in (None, PORT) or parts.username is not None:
        raise ImageUrlError("images are fetched over https only, without port, user and password")
    if not parts.hostname:
        raise ImageUrlError("the URL of the image names no host")
    if hosts is not None and parts.hostname not in map(str.lower, hosts):
        raise ImageUrlError(f"images are not fetched from this host, only from {', '.join(hosts)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ImageUrlError("the URL of the image has characters that must be percent-encoded")
    return parts


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as cause:
        raise ImageUrlError("the URL that the image's host redirects to cannot be read") from cause


async def resolve(host: str) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    except UnicodeError as cause:  # a part of the name is empty or too long
        raise ImageUrlError("the host of the image has no valid name") from cause
    return [str(entry[4][0]) for entry in found]


async def connect(address: str, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an address with TLS; raises OSError, also if the certificate is not that of the host."""
    return await asyncio.open_connection(address, PORT, ssl=_tls(), server_hostname=host, limit=_CHUNK)


async def fetch(
    url: str,
    *,
    max_bytes: int,
    timeout_s: float,
    hosts: tuple[str, ...] | None = None,
    redirects: int = 0,
    hold: Callable[[int], None] = lambda size: None,
) -> bytes:
    """Fetch an image.

    Args:
        url: An https URL, in ASCII.
        max_bytes: Size of the image.
        timeout_s: Seconds for everything.
        hosts: Names of the only hosts to ask, redirects included; None for all on the public internet.
        redirects: How many are followed.
        hold: Called with the bytes that this takes so far; what it raises ends the work.

    Raises:
        ImageUrlError: The URL, or one that it redirects to, is not https, not of these hosts, or not public.
        ImageTooLargeError: It is over the limit.
        ImageFetchError: It could not be fetched; a `TimeoutError` is the cause where that took too long.
    """
    host = ""
    try:
        async with asyncio.timeout(timeout_s):
            for left in range(redirects, -1, -1):
                parts = check_url(url, hosts)
                host = parts.hostname or ""
                address = _public(await resolve(host))
                reader, writer = await connect(address, host)
                try:
                    found = await _get(reader, writer, parts, max_bytes, hold, follow=left > 0)
                finally:
                    writer.transport.abort()  # nothing more is wanted; closing would wait for the other side
                if isinstance(found, bytes):
                    return found
                url = _joined(url, found)
    except TimeoutError as cause:
        raise _failed(f"{host} did not give it within {timeout_s:g} s") from cause
    except (OSError, h11.ProtocolError) as cause:
        raise _failed(f"{host} cannot be asked for it") from cause
    raise AssertionError("the last redirect was followed")


def is_public(address: str) -> bool:
    """Whether an address is on the public internet, and not a private one in another notation."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:  # the same socket as with the IPv4 address
            return is_public(str(parsed.ipv4_mapped))
        if parsed not in _UNICAST or any(parsed in network for network in _TRANSLATED):
            return False
        if int(parsed) >> 32 & 0xFFFFFFFF in _ISATAP:
            return False
    return parsed.is_global and not parsed.is_multicast


def _public(addresses: list[str]) -> str:
    if not addresses or not all(map(is_public, addresses)):
        raise ImageUrlError("the host of the image has no address, or one on a private network")
    return addresses[0]


async def _get(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parts: SplitResult,
    max_bytes: int,
    hold: Callable[[int], None],
    *,
    follow: bool,
) -> bytes | str:
    """Return the image, or with `follow` where its host redirects to."""
    connection = h11.Connection(h11.CLIENT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""
    headers = {"Host": f"[{host}]" if ":" in host else host, "Accept": "image/*", "Accept-Encoding": "identity"}
    headers |= {"User-Agent": "photonlite", "Connection": "close"}
    for event in (h11.Request(method="GET", target=target, headers=list(headers.items())), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    data = bytearray()
    while True:
        received = connection.next_event()
        if received is h11.NEED_DATA:
            await asyncio.sleep(0)  # a read of what has come already would not let other tasks run
            connection.receive_data(await reader.read(_PARSED))
        elif isinstance(received, h11.Response):
            if follow and (location := _location(received)):
                return location
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


def _location(response: h11.Response) -> str | None:
    headers = dict(response.headers)  # names are in lower case
    if response.status_code not in (301, 302, 303, 307, 308) or b"location" not in headers:
        return None
    return headers[b"location"].decode("latin-1")


def _check_response(response: h11.Response, max_bytes: int) -> None:
    if 300 <= response.status_code < 400:
        raise _failed("its host redirects, which is not followed (any further): name the final URL")
    if response.status_code != 200:
        raise _failed(f"its host answered {response.status_code}")
    for name, value in response.headers:
        if name == b"content-length":  # h11 has checked that it is a number
            _check_size(int(value), max_bytes)


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ImageTooLargeError(f"the image behind the URL is over the limit of {max_bytes} bytes: use a smaller one")


def _failed(reason: str) -> ImageFetchError:
    return ImageFetchError(f"the image could not be fetched: {reason}")

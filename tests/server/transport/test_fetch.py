import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.transport import fetch as module
from photonlite.server.transport.fetch import is_public
from tests.serving import run

URL = "https://pictures.example/a%20b.png?size=2"
HEAD = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"


class Writer:
    """The part of a connection that is used."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Host:
    """Answers every connection with the same bytes."""

    def __init__(self, answer: bytes, addresses: list[str] | None = None, *, stays: bool = False) -> None:
        self.addresses = ["93.184.216.34"] if addresses is None else addresses
        self.writer = Writer()
        self.connected: list[tuple[str, str]] = []
        self._answer = answer
        self._stays = stays

    async def resolve(self, host: str) -> list[str]:
        return self.addresses

    async def connect(self, address: str, host: str) -> tuple[Any, Any]:
        self.connected.append((address, host))
        reader = asyncio.StreamReader()
        reader.feed_data(self._answer)
        if not self._stays:
            reader.feed_eof()
        return reader, self.writer

    def get(self, url: str = URL, timeout_s: float = 20.0, max_bytes: int = 100) -> bytes:
        config = ServerConfig(url_hosts=("Pictures.example",), max_body_bytes=max_bytes, body_timeout_s=timeout_s)
        with patch.multiple(module, resolve=self.resolve, connect=self.connect):
            return bytes(run(module.fetch(url, config, lambda size: None)))


def test_an_image_of_a_named_host_is_fetched_from_the_address_that_was_checked() -> None:
    host = Host(f"{HEAD}picture".encode())
    assert host.get() == b"picture"
    assert host.connected == [("93.184.216.34", "pictures.example")]
    assert host.writer.data.startswith(b"GET /a%20b.png?size=2 HTTP/1.1\r\nHost: pictures.example\r\n")
    assert host.writer.closed


def test_chunks_and_bodies_that_end_with_the_connection_are_read() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\npic\r\n4\r\nture\r\n0\r\n\r\n"
    assert Host(chunked).get() == b"picture"
    assert Host(b"HTTP/1.1 200 OK\r\n\r\npicture").get("https://pictures.example") == b"picture"


@pytest.mark.parametrize(
    "url",
    [
        "http://pictures.example/a.png",
        "https://other.example/a.png",
        "https://pictures.example.evil.example/a.png",
        "https://evil.example/?pictures.example",
        "https://pictures.example@evil.example/a.png",
        "https://user@pictures.example/a.png",
        "https://pictures.example:8443/a.png",
        "https://pictures.example:x/a.png",
        "https://[pictures.example/a.png",
        "https://pictures.example/a b.png",
        "https://pictures.example/a\r\nX: y",
        "https://pictures.example/ä.png",
        "https://",
        "ftp://pictures.example/a.png",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    host = Host(b"")
    with pytest.raises(HttpError) as error:
        host.get(url)
    assert (error.value.status, error.value.code) == (422, "remote_image_refused")
    assert host.connected == []


@pytest.mark.parametrize(
    "addresses", [[], ["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["fe80::1%eth0"], ["::ffff:192.168.0.1"]]
)
def test_a_host_on_a_private_network_is_refused(addresses: list[str]) -> None:
    host = Host(f"{HEAD}picture".encode(), addresses)
    with pytest.raises(HttpError) as error:
        host.get()
    assert error.value.code == "remote_image_refused"
    assert host.connected == []


PRIVATE = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.2.1 192.168.1.1 224.0.0.1 240.0.0.1
255.255.255.255 :: ::1 fc00::1 fe80::1 ff02::1 64:ff9b::a00:1 ::ffff:10.0.0.1 2002:a00:1::1 2001:db8::1
2001:0:4136:e378:8000:63bf:3fff:fdd2 unknown 64:ff9b::808:808 64:ff9b:1::808:808 ::8.8.8.8 ::ffff:0:8.8.8.8
2002:808:808::1 2606:4700::5efe:a00:1 2606:4700::200:5efe:808:808
"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_private_addresses_are_recognized_in_any_notation(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_recognized(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: https://pictures.example/b.png\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npicture",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\npicture",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
def test_a_host_without_the_image_is_an_error_of_the_request(answer: bytes) -> None:
    host = Host(answer)
    with pytest.raises(HttpError) as error:
        host.get()
    assert (error.value.status, error.value.code) == (422, "image_fetch_failed")
    assert host.writer.closed


def test_a_redirect_is_named_in_the_error() -> None:
    with pytest.raises(HttpError, match="redirect"):
        Host(b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n").get()


def test_an_image_over_the_limit_is_not_read_to_its_end() -> None:
    for answer in (HEAD, "HTTP/1.1 200 OK\r\n\r\npicture"):
        with pytest.raises(HttpError) as error:
            Host(answer.encode(), stays=True).get(max_bytes=6)
        assert (error.value.status, error.value.code) == (413, "image_too_large")


def test_a_slow_host_is_given_up() -> None:
    host = Host(b"HTTP/1.1 200 OK\r\n", stays=True)
    with pytest.raises(HttpError) as error:
        host.get(timeout_s=0.01)
    assert error.value.code == "image_fetch_failed"
    assert host.writer.closed

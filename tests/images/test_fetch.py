import asyncio
import io
import threading
import time
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch

import photonlite
from photonlite.api import VisionModel
from photonlite.errors import (
    DeadlineError,
    ImageFetchError,
    ImageTooLargeError,
    ImageUrlError,
    ModelError,
    SettingsError,
)
from photonlite.images import fetch as module
from photonlite.images.fetch import ImageFetcher, is_public
from tests.serving import GUARD, IMAGE, double, on_thread, run, serve
from tests.tiny import CPU

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

    @property
    def transport(self) -> "Writer":
        return self

    def abort(self) -> None:
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

    def get(self, url: str = URL, timeout_s: float = 20.0, max_bytes: int = 100, redirects: int = 0) -> bytes:
        hosts = ("Pictures.example",)
        with patch.multiple(module, resolve=self.resolve, connect=self.connect):
            return bytes(
                run(module.fetch(url, hosts=hosts, max_bytes=max_bytes, timeout_s=timeout_s, redirects=redirects))
            )


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
    with pytest.raises(ImageUrlError):
        host.get(url)
    assert host.connected == []


@pytest.mark.parametrize(
    "addresses", [[], ["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["fe80::1%eth0"], ["::ffff:192.168.0.1"]]
)
def test_a_host_on_a_private_network_is_refused(addresses: list[str]) -> None:
    host = Host(f"{HEAD}picture".encode(), addresses)
    with pytest.raises(ImageUrlError, match="private network"):
        host.get()
    assert host.connected == []


PRIVATE = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.2.1 192.168.1.1 224.0.0.1 240.0.0.1
255.255.255.255 :: ::1 fc00::1 fe80::1 ff02::1 64:ff9b::a00:1 ::ffff:10.0.0.1 2002:a00:1::1 2001:db8::1
2001:0:4136:e378:8000:63bf:3fff:fdd2 unknown 64:ff9b::808:808 64:ff9b:1::808:808 ::8.8.8.8 ::ffff:0:8.8.8.8
2002:808:808::1 fec0::1 5f00::1 8000::1 2606:4700::5efe:a00:1 2606:4700::200:5efe:808:808
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
    with pytest.raises(ImageFetchError):
        host.get()
    assert host.writer.closed


def test_a_redirect_is_named_in_the_error() -> None:
    with pytest.raises(ImageFetchError, match="redirect"):
        Host(b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n").get()


def test_an_image_over_the_limit_is_not_read_to_its_end() -> None:
    for answer in (HEAD, "HTTP/1.1 200 OK\r\n\r\npicture"):
        with pytest.raises(ImageTooLargeError, match="limit of 6 bytes"):
            Host(answer.encode(), stays=True).get(max_bytes=6)


def test_other_tasks_run_while_a_host_sends_tiny_chunks() -> None:
    chunks, turns = b"1\r\nx\r\n" * 20_000, []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def main() -> int:
        task = asyncio.ensure_future(other())
        parts, reader = module.check_url(URL, None), asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        found = await module._get(reader, cast(Any, Writer()), parts, 10**6, lambda size: None, follow=False)
        task.cancel()
        return len(found)

    assert run(main()) == 20_000
    assert len(turns) >= len(chunks) // 4096


def test_the_certificates_of_the_system_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    async def opened(*_: Any, ssl: Any, **more: Any) -> tuple[Any, Any]:
        used.append(ssl)
        return asyncio.StreamReader(), Writer()

    monkeypatch.setattr(asyncio, "open_connection", opened)
    for _ in range(2):
        run(module.connect("93.184.216.34", "pictures.example"))
    assert used[0] is used[1]


def test_a_slow_host_is_given_up() -> None:
    host = Host(b"HTTP/1.1 200 OK\r\n", stays=True)
    with pytest.raises(ImageFetchError, match=r"did not give it within 0\.01 s") as error:
        host.get(timeout_s=0.01)
    assert isinstance(error.value.__cause__, TimeoutError)
    assert host.writer.closed


class Internet:
    """Hosts by name, each at an address of its own, with an answer for each path."""

    def __init__(self, pages: dict[str, bytes], addresses: dict[str, str] | None = None) -> None:
        self.pages = pages
        self.addresses = addresses or {}
        self.asked: list[str] = []

    async def resolve(self, host: str) -> list[str]:
        return [self.addresses.get(host, "93.184.216.34")]

    async def connect(self, address: str, host: str) -> tuple[Any, Any]:
        reader, writer = asyncio.StreamReader(), Writer()

        async def drain() -> None:
            path = writer.data.split()[1].decode()
            self.asked.append(host + path)
            reader.feed_data(self.pages[host + path])
            reader.feed_eof()

        writer.drain = drain  # type: ignore[method-assign]
        return reader, writer

    def get(self, url: str, **options: Any) -> bytes:
        options = {"max_bytes": 100, "timeout_s": GUARD, "redirects": 5} | options
        with patch.multiple(module, resolve=self.resolve, connect=self.connect):
            return run(module.fetch(url, **options))


def moved(location: str, status: str = "302 Found") -> bytes:
    return f"HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


PICTURE = f"{HEAD}picture".encode()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirects_are_followed(status: str) -> None:
    web = Internet(
        {
            "a.example/x": moved("/y?z=1", status),
            "a.example/y?z=1": moved("https://b.example/p", status),
            "b.example/p": PICTURE,
        }
    )
    assert web.get("https://a.example/x") == b"picture"
    assert web.asked == ["a.example/x", "a.example/y?z=1", "b.example/p"]


@pytest.mark.parametrize(
    "location",
    [
        "http://b.example/p",
        "https://b.example:8080/p",
        "https://inside.example/p",
        "https://user@b.example/p",
        "https://[b.example/p",
        "file:///etc/passwd",
        "https://b.example/\xe4",
    ],
)
def test_a_redirect_is_checked_as_a_url_is(location: str) -> None:
    web = Internet({"a.example/": moved(location), "b.example/p": PICTURE}, {"inside.example": "10.0.0.1"})
    with pytest.raises(ImageUrlError):
        web.get("https://a.example/")
    assert web.asked == ["a.example/"]


def test_a_redirect_away_from_the_named_hosts_is_refused() -> None:
    web = Internet({"a.example/": moved("https://b.example/p"), "b.example/p": PICTURE})
    with pytest.raises(ImageUrlError, match=r"only from a\.example"):
        web.get("https://a.example/", hosts=("a.example",))


def test_redirects_in_a_circle_end() -> None:
    web = Internet({"a.example/": moved("/")})
    with pytest.raises(ImageFetchError, match="redirects"):
        web.get("https://a.example/")
    assert len(web.asked) == 6


def test_a_host_without_a_valid_name_is_refused() -> None:
    for host in ("a" * 64 + ".example", "a..example"):
        with pytest.raises(ImageUrlError, match="no valid name"):
            run(module.fetch(f"https://{host}/", max_bytes=1, timeout_s=GUARD))


async def never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


def png() -> bytes:
    buffer = io.BytesIO()
    IMAGE.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def model() -> Iterator[VisionModel]:
    with VisionModel(double(), CPU, torch.float64, allow_urls=True) as model:
        yield model


def test_a_model_that_may_fetches_images(model: VisionModel) -> None:
    picture = png()
    page = f"HTTP/1.1 200 OK\r\nContent-Length: {len(picture)}\r\n\r\n".encode() + picture
    web = Internet({"a.example/p.png": page, "a.example/none": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"})
    url, wanted = "https://a.example/p.png", model.detect(IMAGE, "mug")

    with patch.multiple(module, resolve=web.resolve, connect=web.connect):
        assert model.detect(url, "mug") == wanted
        assert run(model.adetect(url, "mug")) == wanted
        missing = {"skill": "detect", "image": "https://a.example/none", "object": "mug"}
        found, failed = model.batch([{"skill": "detect", "image": url, "object": "mug"}, missing])
        assert found == wanted
        with pytest.raises(ImageFetchError, match="answered 404"):
            raise failed
        assert model.detect(model.encode_image(url), "mug") == wanted

        async def inside() -> Any:
            return model.detect(url, "mug")  # where an event loop runs already, as in a notebook

        assert run(inside()) == wanted
    with pytest.raises(ImageUrlError, match="https only"):
        model.detect("http://a.example/p.png", "mug")
    with pytest.raises(ImageUrlError, match="private network"):
        model.detect("https://127.0.0.1/p.png", "mug")


def test_closing_a_model_ends_calls_that_wait_for_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def fetch(url: str, **options: Any) -> bytes:
        begun.set()
        try:
            return await never()
        finally:
            ended.set()

    monkeypatch.setattr(module, "fetch", fetch)
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    with VisionModel(double(), CPU, torch.float64, allow_urls=True) as model:
        asked = [on_thread(lambda: model.detect("https://a.example/p.png", "mug")) for _ in range(2)]
        asked.append(on_thread(lambda: run(model.adetect("https://a.example/p.png", "mug"))))
        assert begun.wait(GUARD)
        while len(model._session.open) < 3:
            time.sleep(0)
        model.close(drain=False)
        for call in asked:
            with pytest.raises(ModelError, match="closed"):
                call.result(GUARD)
        assert ended.wait(GUARD)


def test_closing_twice_is_fine_although_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fetch", lambda url, **options: never())
    before, fetcher = set(threading.enumerate()), module.ImageFetcher(1_000)
    fetched = fetcher.submit("https://a.example/p.png")
    (thread,) = set(threading.enumerate()) - before
    fetcher.close()
    thread.join(GUARD)
    fetcher.close()
    assert fetched.done()


def test_urls_are_fetched_after_one_for_which_no_thread_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(url: str, **options: Any) -> bytes:
        return b"image"

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "fetch", fetch)
    fetcher = module.ImageFetcher(1_000)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start"):
            fetcher.submit("https://a.example/p.png")
    assert fetcher.submit("https://a.example/p.png").result(GUARD) == b"image"
    fetcher.close()


def test_a_model_that_was_not_told_to_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fetch", None)
    with serve() as model, pytest.raises(ImageUrlError, match="allow_urls=True"):
        model.detect("https://a.example/p.png", "mug")
    with pytest.raises(SettingsError, match="allow_urls is 'false': give True or False"):
        photonlite.load(allow_urls="false")  # type: ignore[arg-type]


def test_waiting_for_a_host_ends_at_the_deadline(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(url: str, **options: Any) -> bytes:
        return await never()

    monkeypatch.setattr(module, "fetch", fetch)
    with pytest.raises(DeadlineError):
        model.detect("https://a.example/p.png", "mug", deadline_s=0.01)


def test_an_ipv6_address_stands_in_brackets_in_the_host_header() -> None:
    host = Host((HEAD + "picture").encode(), ["2606:4700::6810:84e5"])
    with patch.multiple(module, resolve=host.resolve, connect=host.connect):
        run(module.fetch("https://[2606:4700::6810:84e5]/a.png", max_bytes=100, timeout_s=GUARD))
    assert b"\r\nHost: [2606:4700::6810:84e5]\r\n" in host.writer.data


def test_a_closed_fetcher_refuses() -> None:
    fetcher = ImageFetcher(100)
    fetcher.close()
    with pytest.raises(ModelError, match="closed"):
        fetcher.submit("https://a.example/")

"""Real servers on free ports: in a thread of the test, or in a process of their own that takes signals."""

import asyncio
import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from starlette.applications import Starlette

from photonlite.api import VisionModel, load
from photonlite.server.app import create_app
from photonlite.server.calls import ServedModel
from photonlite.server.config import ServerConfig
from photonlite.server.ingress import Ingress
from photonlite.server.run import DrainingServer
from photonlite.server.transport.listening import listen
from photonlite.server.watchdog import Watchdog
from tests.guard import GUARD
from tests.server.fake import FakeModel

ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")


class Live:
    """A server on a thread.

    Attributes:
        fake: What answers; touch what belongs to its event loop through `call`.
        config: Its settings.
        host: Address that it listens at.
        port: Port that it really has.
        ingress: The way in; belongs to the event loop, too.
        server: What runs.
        thread: Where.
    """

    def __init__(
        self, app: Starlette, fake: ServedModel, config: ServerConfig, watchdog: Watchdog | None = None
    ) -> None:
        self.fake = fake
        self.config = config
        self.ingress: Ingress = app.state.ingress
        self._started = threading.Event()
        self._listener = listen(config)
        self.host, self.port = self._listener.getsockname()[:2]
        started = self._started
        self.server = DrainingServer(app, config, on_start=lambda host, port: started.set(), watchdog=watchdog)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name="live-server", daemon=True)
        self.thread.start()
        assert self._started.wait(GUARD)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def call(self, work: Callable[[], T]) -> T:
        """Do something on the server's event loop, and give what it gives."""

        async def run() -> T:
            return work()

        return self.wait(run())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's event loop, and give what it gives."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(GUARD)

    def advance(self, seconds: float) -> None:
        """Set the event loop's clock forward, so that what is due by then happens now."""

        def set_clock() -> None:
            loop = asyncio.get_running_loop()
            now = loop.time
            loop.time = lambda: now() + seconds  # type: ignore[method-assign]

        self.call(set_clock)

    def connect(self) -> socket.socket:
        """Open a connection that has said nothing yet; reading from it fails after `GUARD` seconds."""
        return socket.create_connection((self.host, self.port), timeout=GUARD)

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        return self.ask("GET", path, headers=headers)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=GUARD)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()

    def begin_to_stop(self) -> None:
        """Do what SIGTERM does; the server knows when this returns."""
        if not self._stopping:
            self._stopping = True
            self.server.stop()
            assert self._loop is not None
            known = threading.Event()
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(known.set)
            while self.thread.is_alive() and not known.wait(0.05):
                pass

    def stop(self) -> int:
        """Stop unless that has begun, wait for the end, and give the exit code."""
        self.begin_to_stop()
        self.thread.join(GUARD)
        assert not self.thread.is_alive()
        return self.server.exit_code

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            await self.server.serve(sockets=[self._listener])

        asyncio.run(main())


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + GUARD
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.001)


@contextlib.contextmanager
def live(
    fake: ServedModel | None = None, app: Starlette | None = None, watchdog: Watchdog | None = None, **settings: Any
) -> Iterator[Live]:
    """Serve while a block runs.

    Args:
        fake: Answers; a `FakeModel` unless given.
        app: Instead of what `create_app` makes of the fake; it needs `app.state.ingress`.
        watchdog: Watches the server.
        **settings: Of `ServerConfig`; the port is a free one.
    """
    config = ServerConfig(**{"port": 0, "drain_s": 0.0, **settings})
    fake = fake or FakeModel()
    server = Live(app or create_app(fake, config), fake, config, watchdog)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def live_model(model: VisionModel | None = None, **settings: Any) -> Iterator[Live]:
    """Serve a real model while a block runs: the shipped one, on the CPU, unless another is given."""
    loaded = model or load(device="cpu")
    try:
        with live(loaded, **settings) as server:
            yield server
    finally:
        if model is None:
            loaded.close(drain=False)


class ServerProcess:
    """A program that serves, in a process of its own. What it says is read line by line as it comes.

    Args:
        *arguments: Of the Python interpreter.
        **environment: More variables.
    """

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        readers = (self._read, self.process.stdout, self.out), (self._read, self.process.stderr, self.err)
        self.threads = [threading.Thread(target=work, args=to, daemon=True) for work, *to in readers]
        for thread in self.threads:
            thread.start()

    @classmethod
    def fake(cls, **settings: Any) -> "ServerProcess":
        """Run `tests/server/told.py`: a fake model that hangs until told."""
        return cls("-m", "tests.server.told", json.dumps(settings))

    def wait_for(self, text: str) -> str:
        """Return the next line of stdout or stderr that has a text in it."""
        while (line := self._news.get(timeout=GUARD)) is not None:
            if text in line:
                return line
        raise AssertionError(f"the process ended without saying {text!r}, but: {''.join(self.err)}")

    def release(self) -> None:
        """Let a fake model answer."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end, and give the exit code; `lines` has all of stdout then."""
        code = self.process.wait(GUARD)
        for thread in self.threads:
            thread.join(GUARD)
        return code

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self.out]

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(GUARD)
        for thread in self.threads:
            thread.join(GUARD)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            lines.append(line)
            self._news.put(line)
        self._news.put(None)

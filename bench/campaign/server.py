"""`photonlite serve` in processes of its own: supervisor, serving process, and their workers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import psutil

from bench.campaign.client import HOST, Answer, Ask, ask
from bench.campaign.trial import Setup

SERVE: Final = ("-m", "photonlite.cli", "serve")
STARTING_S: Final = 300.0
_STOPPING_S: Final = 60.0
WORKERS: Final = {"image": "photonlite.images.isolation.worker", "grammar": "photonlite.grammar.compiler.worker"}
"""Modules of the workers, by kind."""


class ServerError(Exception):
    """A server that does not start, or has no process where one is expected."""


class Server:
    """A server that runs while a block does.

    Args:
        setup: Names the model.
        flags: Of `photonlite serve`, beside model, device and port.
        environment: Variables added to this process's own.
        program: What Python runs in place of `photonlite serve`.
        streams: Where stdout and stderr go; files of its own unless given.

    Attributes:
        port: That it listens at.
        start_s: Seconds from its start until it was ready.
    """

    def __init__(
        self,
        setup: Setup,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        streams: tuple[str, str] | None = None,
    ) -> None:
        self._files = contextlib.ExitStack()
        # Bound, but not listened at: other programs are not given the port, and the server may bind it.
        reserved = self._files.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        self.port: int = reserved.getsockname()[1]
        self.start_s = 0.0
        self._command = [sys.executable, *(program or SERVE), "--model", str(setup.model), "--device", "cpu"]
        self._command += ["--port", str(self.port), *flags]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes]
        self._out, self._err = _files() if streams is None else map(_device, streams)
        self._reads = streams is None

    def __enter__(self) -> "Server":
        begun = time.monotonic()
        for file in (self._out, self._err):
            self._files.enter_context(file)
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err
        )
        while self.ready().status != 200:
            if self._process.poll() is not None or time.monotonic() - begun > STARTING_S:
                error = ServerError(f"the server did not start (exit code {self._process.poll()}): {self.said()}")
                self.__exit__()
                raise error
            time.sleep(0.02)
        self.start_s = time.monotonic() - begun
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._files.close()

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    @property
    def serving(self) -> psutil.Process:
        """The process that serves; raises `ServerError` where there is none."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.supervisor.children():
                if child.status() != psutil.STATUS_ZOMBIE:
                    return child
        raise ServerError(f"no process serves: {self.said()}")

    @property
    def family(self) -> list[psutil.Process]:
        """All its processes."""
        return [self.supervisor, *self.supervisor.children(recursive=True)]

    def workers(self, kind: str) -> list[psutil.Process]:
        """Return the workers of a kind of `WORKERS`."""
        found = []
        for process in self.serving.children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if WORKERS[kind] in process.cmdline():
                    found.append(process)
        return found

    def ready(self) -> Answer:
        return ask(self.port, Ask("/ready"))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = _STOPPING_S) -> int:
        """Wait for the end; returns the exit code, or that of SIGKILL, which it gets where it takes too long."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            for process in self.family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return self._process.wait()

    def stop(self) -> int:
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return lines of its log with an event."""
        # `pread` leaves alone the offset at which the server writes.
        data = os.pread(self._out.fileno(), os.fstat(self._out.fileno()).st_size, 0)
        marker = json.dumps({"event": name})[1:-1].encode()
        lines = (line for line in data.splitlines() if marker in line)
        return [json.loads(line) for line in lines if line.endswith(b"}")]

    def restarts(self) -> str:
        """Return why processes were started again, in a line; empty where none was."""
        reasons = [f"{line['reason']} ({line['exit_code']})" for line in self.events("restarting")]
        return f"the serving process ended: {', '.join(reasons)}; {self.said()}" if reasons else ""

    def said(self) -> str:
        """Return the end of its stderr."""
        if not self._reads:
            return ""
        size = os.fstat(self._err.fileno()).st_size
        tail = os.pread(self._err.fileno(), 600, max(0, size - 600))
        return " | ".join(tail.decode(errors="replace").strip().splitlines()[-4:])


def _files() -> tuple[IO[bytes], IO[bytes]]:
    return tempfile.TemporaryFile(), tempfile.TemporaryFile()


def _device(name: str) -> IO[bytes]:
    return open(name, "r+b", buffering=0)

"""One worker process, as the process that started it uses it."""

import contextlib
import functools
import logging
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import ClassVar, Final

from photonlite.errors import EngineError
from photonlite.processes.messages import receive_message, send_message

LOGGER = logging.getLogger(__name__)

START_S: Final = 60.0  # seconds within which a worker must be ready: on a busy machine importing NumPy takes some
KILLED_FROM_OUTSIDE: Final = (-9, -15, -1, -2)  # SIGKILL, SIGTERM, SIGHUP, SIGINT; limits of a job use others
_POLL_S: Final = 0.1  # seconds between calls of `while_waiting`
_EXIT_S: Final = 5.0  # seconds that a process which has closed its socket gets to exit

# Variables that a worker gets: they say where Python and its libraries are and how names of files are encoded. All
# others, keys and tokens among them, stay here.
_KEPT: Final = re.compile("PATH|LANG|LC_[A-Z]+|(LD|DYLD)_LIBRARY_PATH|PYTHON(HOME|UTF8)")
# Threads of linear algebra would only cost memory; and large blocks are returned to the system when they are freed.
_ENVIRONMENT: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "MALLOC_ARENA_MAX": "1",
}


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module. Multiprocessing would import the user's main module, with PyTorch."""
    return (sys.executable or "python3", "-P", "-m", module, *arguments)


class WorkerLostError(Exception):
    """The worker ended instead of answering, or was killed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@functools.cache
def _warn_once(purpose: str, missing: str) -> None:
    LOGGER.warning("the process that %s is confined less, as this system lacks: %s", purpose, missing)


class WorkerProcess:
    """A child process with a socket. One thread starts and uses it, and it ends with that; any thread may kill it."""

    purpose: ClassVar[str]  # for messages
    start_error: ClassVar[type[EngineError]] = EngineError

    def __init__(self, command: Sequence[str], *, setup: bytes | None = None, files: Sequence[int] = ()) -> None:
        self.replaced = False  # whether another thread and process were started, so that its thread ends after its job
        self._setup = setup
        self._command = command
        kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        try:
            with contextlib.ExitStack() as opened:
                self._stderr = opened.enter_context(tempfile.TemporaryFile())  # it is closed when the worker is ready
                self._socket, theirs = socket.socketpair()
                opened.enter_context(self._socket)
                with theirs:
                    self._process = subprocess.Popen(
                        command,
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=self._stderr,
                        # The worker must find exactly the modules that this process finds.
                        env=kept | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
                        pass_fds=files,
                        start_new_session=True,  # the terminal's Ctrl-C does not reach it, not even while it starts
                    )
                opened.pop_all()
        except OSError as cause:  # no such program, or no descriptors or disk space left
            raise self._not_started(str(cause)) from cause
        self._socket.settimeout(START_S)  # for sending to a worker that does not read

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, below 0 the number of a signal; None while it runs."""
        return self._process.poll()

    @property
    def usable(self) -> bool:
        """Whether it can take a job, as far as this process can tell."""
        return self.exit_code is None and not self._stopped()

    def wait_ready(self) -> None:
        """Wait until everything is imported; raises `start_error` where the process ends instead, or takes too long."""
        try:
            if self._setup is not None:
                self.send(self._setup)
            if missing := self.receive(time.monotonic() + START_S).decode():
                _warn_once(self.purpose, missing)
        except TimeoutError as cause:
            raise self._not_started(f"it was not ready after {START_S:g} s") from cause
        except (OSError, EOFError) as cause:
            code = self.wait_exit()
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            raise self._not_started(lines[-1][:300] if lines else f"it ended with exit code {code}") from cause
        finally:
            self._stderr.close()

    def send(self, message: bytes) -> None:
        send_message(self._socket, message)

    def receive(self, deadline: float, longest: int | None = None) -> bytes:
        """Wait for a message until a time of `time.monotonic`; TimeoutError, or what `receive_message` raises."""
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)

        def wait() -> None:
            while not readable.poll(1000 * min(_POLL_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise TimeoutError
                self.while_waiting()

        return receive_message(self._socket, longest, wait)

    def while_waiting(self) -> None:
        """Called now and then while a message is awaited: a stopped process would keep its job until the deadline."""
        if self._stopped():
            self.kill()

    def wait_exit(self) -> int:
        """Return the exit code of a process that has closed its socket; kill it if it goes on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_S)
        self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process; from any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and release its resources; only by the thread that uses it."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._stderr.close()

    def disown(self) -> None:
        """Close a forked copy of the socket: with copies open, the worker would not see its parent end."""
        self._socket.close()
        self._process.returncode = 0  # it is not this process's child: it can be neither waited for nor killed

    def _stopped(self) -> bool:
        """Whether something, such as SIGSTOP, has stopped the process."""
        with contextlib.suppress(ChildProcessError, AttributeError):  # it has ended; macOS has no waitid
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def _not_started(self, reason: str) -> EngineError:
        return self.start_error(
            f"the process that {self.purpose} does not start: {reason}; check that `{' '.join(self._command)}` runs"
        )

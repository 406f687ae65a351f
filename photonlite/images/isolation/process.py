"""One decoding worker, seen from the process that uses it."""

import contextlib
import dataclasses
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import (
    EngineError,
    ImageDecodeError,
    ImageError,
    ImageShapeError,
    ImageTimeoutError,
    ImageTooLargeError,
)
from photonlite.images.isolation.worker import MESSAGE_BYTES
from photonlite.images.source import DecodedImage

Admit: TypeAlias = Callable[[int], None]
"""Called with the bytes that decoding needs before they are allocated; an exception ends the job and is raised."""

START_S: Final = 60.0  # seconds within which a worker must be ready: on a busy machine importing NumPy takes some
SLOW_S: Final = 0.25  # seconds of CPU time after which an image counts as slow and its worker gets a lower priority
BACKSTOP_S: Final = 600.0
"""Seconds after which an unresponsive worker is killed. CPU time ends it much earlier, unless it sleeps."""

_POLL_S: Final = 0.1  # seconds between checks of a busy worker's CPU time
_NICE: Final = 10  # priority of slow workers: a thread at normal priority gets nine times as much CPU as each of them
_ERRORS: Final[dict[str, type[ImageError]]] = {
    kind.__name__: kind for kind in (ImageDecodeError, ImageShapeError, ImageTooLargeError)
}
"""Errors that a worker may answer with."""

# NumPy's threads would only cost memory; and large blocks are returned to the system when they are freed.
_ENVIRONMENT: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "MALLOC_ARENA_MAX": "1",
}


class DecoderLostError(Exception):
    """The worker was killed for a reason other than its image."""


class DecodeProcess:
    """A process that decodes one image at a time. One thread uses it; any thread may kill it.

    Attributes:
        slow: Whether it runs at a lower priority, which cannot be raised again.
        cpu_s: CPU time of the last job in seconds.

    Raises:
        EngineError: The process cannot be started.
    """

    def __init__(self, on_slow: Callable[[], None] = lambda: None) -> None:
        self.slow = False
        self.cpu_s = 0.0
        self._allowed_s = 0.0
        self._begun = float("inf")  # CPU time of the process at the begin of the job; no start-up makes a worker slow
        self._on_slow = on_slow
        self._lock = threading.Lock()
        self._reaped = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed when the worker is ready
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable or "python3", "-P", "-m", "photonlite.images.isolation.worker", str(theirs.fileno()))
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # the terminal's Ctrl-C does not reach it, not even while it starts
            )
        except OSError as cause:
            self._socket.close()
            self._stderr.close()
            raise _start_error(str(cause)) from cause
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        if not self._reaped:
            with contextlib.suppress(ChildProcessError):
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def wait_ready(self) -> None:
        """Wait until everything is imported.

        Raises:
            EngineError: The process ended instead, or took more than `START_S`.
        """
        try:
            self._receive(START_S)
        except (TimeoutError, EOFError, OSError) as cause:
            self.kill()
            self._reap()
            raise _start_error(self._last_stderr_line()) from cause
        finally:
            self._stderr.close()  # the worker writes no more to it

    def decode(self, data: bytes, limits: ImageLimits, admit: Admit | None = None) -> DecodedImage:
        """Decode an image file within the limits.

        Raises:
            ImageError: What `load_image` raises, or the image takes more CPU time or memory than its size allows.
            DecoderLostError: The worker was killed from outside.
            BaseException: What `admit` raised.
        """
        self._begun = self._cpu_clock()
        self._allowed_s = limits.decode_cpu_s
        try:
            return self._exchange(data, limits, admit)
        except (EOFError, ConnectionError) as cause:
            status, used = self._reap()
            self.cpu_s = used - self._begun
            raise self._exit_error(os.waitstatus_to_exitcode(status)) from cause
        except TimeoutError as cause:
            self.close()
            message = f"the image was not decoded within {BACKSTOP_S:g} s: try again when the machine is less busy"
            raise ImageTimeoutError(message) from cause

    def kill(self) -> None:
        """Kill the process; from any thread."""
        with self._lock:
            if not self._reaped:
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and release its resources; only by the thread that uses it."""
        self.kill()
        self._reap()
        self._socket.close()
        self._stderr.close()

    def forget(self) -> None:
        """Close a forked copy of the socket: the worker must see its own client end."""
        self._reaped = True
        self._process.returncode = 0
        self._socket.close()

    def _exchange(self, data: bytes, limits: ImageLimits, admit: Admit | None) -> DecodedImage:
        with _shared_memory(len(data)) as file:
            _write(file, data)
            self._send({"limits": dataclasses.asdict(limits), "bytes": len(data)}, file)
        header = self._receive_answer()
        (width, height), needed = header["size"], header["memory"]
        if not 0 < width * height <= limits.max_pixels:
            raise ImageDecodeError(f"the image has {width}x{height} pixels: hand in an image with at least one")
        try:
            if admit is not None:
                admit(needed)
        except BaseException:
            with contextlib.suppress(OSError):
                self._send({})
            raise
        self._allowed_s += limits.decode_cpu_s_per_megapixel * width * height / 1e6
        with _shared_memory(3 * width * height) as pixels:
            self._send({"memory": needed}, pixels)
            size = tuple(self._receive_answer()["size"])
            if size not in ((width, height), (height, width)):
                raise AssertionError(f"a worker made {size} of {width}x{height} pixels")
            with mmap.mmap(pixels, 3 * width * height, access=mmap.ACCESS_READ) as view:
                return DecodedImage(Image.frombytes("RGB", size, memoryview(view)))

    def _send(self, message: dict[str, Any], *files: int) -> None:
        socket.send_fds(self._socket, [json.dumps(message).encode()], files)

    def _receive_answer(self) -> dict[str, Any]:
        answer = self._receive(BACKSTOP_S)
        self.cpu_s = answer["cpu_s"]
        if "error" in answer:
            raise _ERRORS.get(answer["error"], ImageDecodeError)(answer["message"])
        return answer

    def _receive(self, seconds: float) -> dict[str, Any]:
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not readable.poll(1000 * _POLL_S):
            if time.monotonic() > deadline:
                raise TimeoutError
            if not self.slow and self._cpu_clock() - self._begun > SLOW_S:
                self.slow = True
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)
                self._on_slow()
        data = self._socket.recv(MESSAGE_BYTES)
        if not data:
            raise EOFError
        message: dict[str, Any] = json.loads(data)
        return message

    def _cpu_clock(self) -> float:
        """CPU time of the process in seconds; 0 once it has ended."""
        try:
            # The clock id that clock_getcpuclockid(3) returns for a process; Python has no binding for it.
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def _reap(self) -> tuple[int, float]:
        """Wait for the end; return the exit status, and the CPU time in seconds."""
        with self._lock:
            if self._reaped:
                return 0, 0.0
        # Waiting without reaping keeps the process id taken while another thread may kill.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._reaped = True
            _, status, usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
        return status, usage.ru_utime + usage.ru_stime

    def _exit_error(self, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return ImageTimeoutError(
                f"the image takes more than {self._allowed_s:.2g} s of CPU time to decode, the limit for its size: "
                "save it again as a plain JPEG or PNG, or raise decode_cpu_s (PHOTONLITE_DECODE_CPU_S)"
            )
        if code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT):
            return DecoderLostError(f"signal {-code}")
        return ImageDecodeError(f"the decoder crashed at the image (exit code {code}): save it again as JPEG or PNG")

    def _last_stderr_line(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it ended with exit code {self._process.returncode}"


@contextlib.contextmanager
def _shared_memory(size: int) -> Iterator[int]:
    """Yield anonymous shared memory as a file descriptor: nothing is left of it when processes are killed."""
    file = os.memfd_create("photonlite-image", os.MFD_CLOEXEC)
    try:
        os.truncate(file, size)
        yield file
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)


def _start_error(reason: str) -> EngineError:
    return EngineError(f"the process that decodes images does not start: {reason}")

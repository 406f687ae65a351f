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
from photonlite.images.decode import DecodedImage
from photonlite.images.decode_worker import MESSAGE_BYTES

Admit: TypeAlias = Callable[[int], None]
"""Is told how many bytes decoding will take before they are taken; what it raises ends the job."""

START_S: Final = 60.0
"""Seconds that a worker may take to be ready: on a busy machine importing NumPy can take some."""

SLOW_S: Final = 0.25
"""Seconds of CPU time from which on an image counts as slow: its worker gets a lower priority."""

BACKSTOP_S: Final = 600.0
"""Seconds after which a worker that does not answer is killed. CPU time ends it much earlier, unless it sleeps."""

_LOOK_S: Final = 0.1
"""Seconds between two looks at the CPU time of a worker that is at work."""

_NICE: Final = 10
"""Of slow workers: a thread that computes at normal priority gets nine times as much as each of them."""

_ERRORS: Final[dict[str, type[ImageError]]] = {
    kind.__name__: kind for kind in (ImageDecodeError, ImageShapeError, ImageTooLargeError)
}
"""What a worker may answer."""

# NumPy's threads would only cost memory; and large blocks go back to the system when they are freed.
_ENVIRONMENT: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "MALLOC_ARENA_MAX": "1",
}


class WorkerLostError(Exception):
    """The worker was killed, and not for its image's sake."""


class DecodeProcess:
    """A process that decodes one image after the other. One thread uses it; any thread may kill it.

    Args:
        on_slow: Called once, on the thread that uses it, when an image takes more than `SLOW_S` of CPU time.

    Attributes:
        slow: Whether it runs at a lower priority, for ever: the system lets nobody take that back.
        cpu_s: CPU time of the last job in seconds, as far as the worker told or its end showed.

    Raises:
        EngineError: The system does not start it.
    """

    def __init__(self, on_slow: Callable[[], None] = lambda: None) -> None:
        self.slow = False
        self.cpu_s = 0.0
        self._allowed_s = 0.0
        self._begun = 0.0
        self._working = False
        self._on_slow = on_slow
        self._lock = threading.Lock()
        self._reaped = False
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable or "python3", "-P", "-m", "photonlite.images.decode_worker", str(theirs.fileno()))
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is not for it, not even while it starts
            )
        except OSError as cause:
            self._socket.close()
            self._complaints.close()
            raise _unstarted(str(cause)) from cause
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it takes no more jobs."""
        if not self._reaped:
            with contextlib.suppress(ChildProcessError):
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def wait_ready(self) -> None:
        """Wait until everything is imported.

        Raises:
            EngineError: It ended instead, or took more than `START_S`.
        """
        try:
            self._receive(START_S)
        except (TimeoutError, EOFError, OSError) as cause:
            self.kill()
            self._reap()
            raise _unstarted(self._last_words()) from cause
        finally:
            self._complaints.close()  # from here on the worker is silent

    def decode(self, data: bytes, limits: ImageLimits, admit: Admit | None = None) -> DecodedImage:
        """Open and decode an image.

        Args:
            data: A file.
            limits: See `ImageLimits`; they hold in the worker.
            admit: Told, from the header, what decoding takes.

        Raises:
            ImageError: What `load_image` raises, or the image takes more CPU time or memory than its size allows.
            WorkerLostError: The worker was killed by somebody else.
            BaseException: What `admit` raised.
        """
        self._begun = self._cpu_clock()
        self._working = True  # what it takes to start makes no worker slow
        self._allowed_s = limits.decode_cpu_s
        try:
            return self._decode(data, limits, admit)
        except (EOFError, ConnectionError) as cause:
            status, used = self._reap()
            self.cpu_s = used - self._begun
            raise self._died(os.waitstatus_to_exitcode(status)) from cause
        except TimeoutError as cause:
            self.close()
            message = f"the image was not decoded within {BACKSTOP_S:g} s: try again when the machine is less busy"
            raise ImageTimeoutError(message) from cause

    def kill(self) -> None:
        """End it now; from any thread."""
        with self._lock:
            if not self._reaped:
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, and let go of what it held; only by the thread that uses it."""
        self.kill()
        self._reap()
        self._socket.close()
        self._complaints.close()

    def forget(self) -> None:
        """Close the copy of its socket in a forked process, so that it still sees its own process end."""
        self._reaped = True
        self._process.returncode = 0
        self._socket.close()

    def _decode(self, data: bytes, limits: ImageLimits, admit: Admit | None) -> DecodedImage:
        with _memory(len(data)) as file:
            _write(file, data)
            job = {"limits": dataclasses.asdict(limits), "bytes": len(data), "memory": 2 * len(data)}
            self._send(job, file)
        header = self._answer()
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
        with _memory(3 * width * height) as pixels:
            self._send({"memory": needed}, pixels)
            size = tuple(self._answer()["size"])
            if size not in ((width, height), (height, width)):
                raise AssertionError(f"a worker made {size} of {width}x{height} pixels")
            with mmap.mmap(pixels, 3 * width * height, access=mmap.ACCESS_READ) as view:
                return DecodedImage(Image.frombytes("RGB", size, memoryview(view)))

    def _send(self, message: dict[str, Any], *files: int) -> None:
        socket.send_fds(self._socket, [json.dumps(message).encode()], files)

    def _answer(self) -> dict[str, Any]:
        answer = self._receive(BACKSTOP_S)
        self.cpu_s = answer["cpu_s"]
        if "error" in answer:
            raise _ERRORS.get(answer["error"], ImageDecodeError)(answer["message"])
        return answer

    def _receive(self, seconds: float) -> dict[str, Any]:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        until = time.monotonic() + seconds
        while not waiting.poll(1000 * _LOOK_S):
            if time.monotonic() > until:
                raise TimeoutError
            if self._working and not self.slow and self._cpu_clock() - self._begun > SLOW_S:
                self._slow_down()
        data = self._socket.recv(MESSAGE_BYTES)
        if not data:
            raise EOFError
        message: dict[str, Any] = json.loads(data)
        return message

    def _slow_down(self) -> None:
        self.slow = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)
        self._on_slow()

    def _cpu_clock(self) -> float:
        """CPU time of the process in seconds; 0 once it has ended."""
        try:
            # What clock_getcpuclockid(3) gives for a process, which Python does not offer.
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def _reap(self) -> tuple[int, float]:
        """Wait for the end; give the status, and the CPU time in seconds."""
        with self._lock:
            if self._reaped:
                return 0, 0.0
        # Looking first without reaping keeps the number taken while another thread may kill.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._reaped = True
            _, status, usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
        return status, usage.ru_utime + usage.ru_stime

    def _died(self, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return ImageTimeoutError(
                f"the image takes more than {self._allowed_s:.2g} s of CPU time to decode, the limit for its size: "
                "save it again as a plain JPEG or PNG, or raise decode_cpu_s (PHOTONLITE_DECODE_CPU_S)"
            )
        if code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT):
            return WorkerLostError(f"signal {-code}")
        return ImageDecodeError(f"the decoder crashed at the image (exit code {code}): save it again as JPEG or PNG")

    def _last_words(self) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it ended with exit code {self._process.returncode}"


@contextlib.contextmanager
def _memory(size: int) -> Iterator[int]:
    """Give shared memory of a size as a file descriptor. It has no name: nothing is left of it, whoever is killed."""
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


def _unstarted(reason: str) -> EngineError:
    return EngineError(f"the process that decodes images does not start: {reason}")

"""One decoding worker, as the pool uses it."""

import contextlib
import dataclasses
import json
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import (
    ImageDecodeError,
    ImageError,
    ImageShapeError,
    ImageTimeoutError,
    ImageTooLargeError,
    ImageWorkerError,
)
from photonlite.images.decode import check_pixels
from photonlite.images.source import DecodedImage
from photonlite.processes.worker import KILLED_FROM_OUTSIDE, WorkerLostError, WorkerProcess, module_command

Admit: TypeAlias = Callable[[int], None]  # gets the bytes that decoding needs, before allocation; raises to refuse

SLOW_S: Final = 0.25  # seconds of CPU time after which an image counts as slow and its worker gets a lower priority
BACKSTOP_S: Final = 600.0  # until an unresponsive worker is killed; CPU time ends it much earlier, unless it sleeps

_MESSAGE_BYTES: Final = 8192  # the longest message
_NICE: Final = 10  # priority of slow workers: a thread at normal priority gets nine times as much CPU as each of them
_ERRORS: Final[dict[str, type[ImageError]]] = {  # that a worker may answer with
    kind.__name__: kind for kind in (ImageDecodeError, ImageShapeError, ImageTooLargeError)
}


class DecodeProcess(WorkerProcess):
    """A process that decodes one image at a time. One thread uses it; any thread may kill it.

    `on_slow` is called on that thread when an image is slow. File and pixels are exchanged in anonymous shared memory:
    nothing is left of it when processes are killed.
    """

    purpose = "decodes images"
    start_error = ImageWorkerError

    def __init__(self, on_slow: Callable[[], None] = lambda: None) -> None:
        self.slow = False  # whether it runs at a lower priority, which cannot be raised again
        self.cpu_s = 0.0  # of the last job
        self._allowed_s = 0.0
        self._begun = float("inf")  # CPU time of the process at the begin of the job; no start-up makes a worker slow
        self._on_slow = on_slow
        self._files: list[int] = []
        try:
            for _ in range(2):
                self._files.append(os.memfd_create("photonlite-image", os.MFD_CLOEXEC))
            command = module_command("photonlite.images.isolation.worker", *map(str, self._files))
            super().__init__(command, files=self._files)
        except BaseException:
            self._close_files()
            raise

    @property
    def usable(self) -> bool:
        return not self.slow and super().usable

    def decode(self, data: bytes, limits: ImageLimits, admit: Admit | None = None) -> DecodedImage:
        """Decode an image file; raises ImageError, WorkerLostError if killed from outside, or what `admit` raises."""
        self._begun = self._cpu_clock()
        self._allowed_s = limits.decode_cpu_s
        try:
            return self._exchange(data, limits, admit)
        except TimeoutError as cause:
            self.kill()
            message = f"the image was not decoded within {BACKSTOP_S:g} s: try again when the machine is less busy"
            raise ImageTimeoutError(message) from cause
        except (EOFError, ConnectionError) as cause:
            self.cpu_s = self._cpu_clock() - self._begun
            raise self._exit_error(self.wait_exit()) from cause
        finally:
            for file in self._files:
                os.truncate(file, 0)

    def while_waiting(self) -> None:
        super().while_waiting()
        if not self.slow and self._cpu_clock() - self._begun > SLOW_S:
            self.slow = True
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)
            self._on_slow()

    def close(self) -> None:
        super().close()
        self._close_files()

    def disown(self) -> None:
        super().disown()
        self._close_files()

    def _exchange(self, data: bytes, limits: ImageLimits, admit: Admit | None) -> DecodedImage:
        file, pixels = self._files
        view, offset = memoryview(data), 0
        while offset < len(data):
            offset += os.pwrite(file, view[offset:], offset)
        self._send({"limits": dataclasses.asdict(limits), "bytes": len(data)})
        header = self._receive_answer()
        (width, height), needed = header["size"], header["memory"]
        check_pixels("the image", width, height, limits)
        if width * height <= 0:
            raise ImageDecodeError(f"the image has {width}x{height} pixels: hand in an image with at least one")
        try:
            if admit is not None:
                admit(needed)
        except BaseException:
            with contextlib.suppress(OSError):
                self._send({})
            raise
        self._allowed_s += limits.decode_cpu_s_per_megapixel * width * height / 1e6
        os.truncate(pixels, 3 * width * height)
        self._send({"memory": needed})
        size = tuple(self._receive_answer()["size"])
        if size not in ((width, height), (height, width)):
            raise AssertionError(f"a worker made {size} of {width}x{height} pixels")
        with mmap.mmap(pixels, 3 * width * height, access=mmap.ACCESS_READ) as mapped:
            return DecodedImage(Image.frombytes("RGB", size, memoryview(mapped)))

    def _send(self, message: dict[str, Any]) -> None:
        self.send(json.dumps(message).encode())

    def _receive_answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.receive(time.monotonic() + BACKSTOP_S, _MESSAGE_BYTES))
        self.cpu_s = answer["cpu_s"]
        if "error" in answer:
            raise _ERRORS.get(answer["error"], ImageDecodeError)(answer["message"])
        return answer

    def _cpu_clock(self) -> float:
        """CPU time of the process in seconds; 0 once its exit code has been read."""
        try:
            # The clock id that clock_getcpuclockid(3) returns for a process; Python has no binding for it.
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def _exit_error(self, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return ImageTimeoutError(
                f"the image takes more than {self._allowed_s:.2g} s of CPU time to decode, the limit for its size: "
                "save it again as a plain JPEG or PNG, or raise decode_cpu_s (PHOTONLITE_DECODE_CPU_S)"
            )
        if code in KILLED_FROM_OUTSIDE:
            return WorkerLostError(f"signal {-code}")
        return ImageDecodeError(f"the decoder crashed at the image (exit code {code}): save it again as JPEG or PNG")

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.pop())

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageDecodeError, ImageError, ImageTimeoutError, ImageTooLargeError
from photonlite.images.decode import load_image
from photonlite.images.isolation import process as module
from photonlite.images.isolation.process import DecodeProcess
from photonlite.processes.messages import send_message
from photonlite.processes.worker import WorkerLostError
from tests.guard import GUARD
from tests.images.bombs import BOMBS, noise, png, saved

LIMITS = ImageLimits(decode_cpu_s=0.1, decode_cpu_s_per_megapixel=0.001)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
REFUSED: dict[str, tuple[type[ImageError], ...]] = {
    "gif_canvas": (ImageTooLargeError,),
    "png_size": (ImageTooLargeError,),
    "ppm_token": (ImageDecodeError,),
    # A fast core meets the decoder's own limit of memory first.
    "png_compressed_texts": (ImageTimeoutError, ImageDecodeError),
    "png_international_texts": (ImageTimeoutError, ImageDecodeError),
    "webp_chunks": (ImageTimeoutError, ImageDecodeError),
}
"""Those that a decoder refuses by itself. All others would take more CPU time, unless they take too much memory."""

TICK_S = 0.1
"""CPU seconds that may pass before the kernel looks at a timer of CPU time, or that starting a job takes."""


@contextlib.contextmanager
def started() -> Iterator[DecodeProcess]:
    process = DecodeProcess()
    try:
        process.wait_ready()
        yield process
    finally:
        process.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[list[DecodeProcess]]:
    """The worker that is in use, if it lives: most images do not kill it."""
    left: list[DecodeProcess] = []
    yield left
    for process in left:
        process.close()


@pytest.fixture
def worker(workers: list[DecodeProcess]) -> DecodeProcess:
    if workers and (not workers[-1].usable):
        workers.pop().close()
    if not workers:
        workers.append(DecodeProcess())
        workers[-1].wait_ready()
    return workers[-1]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_image_gets_its_error_within_its_cpu_time(name: str, worker: DecodeProcess) -> None:
    pixels: list[int] = []
    open_before = descriptors()
    with pytest.raises(ImageError) as error:
        worker.decode(BOMBS[name](), LIMITS, pixels.append)
    assert isinstance(error.value, REFUSED.get(name, (ImageTimeoutError, ImageTooLargeError)))
    assert worker.cpu_s <= LIMITS.decode_cpu_s + LIMITS.decode_cpu_s_per_megapixel * 64 + TICK_S
    assert descriptors() <= open_before  # of the memory for file and pixels nothing is left


@pytest.mark.parametrize("format", FORMATS)
def test_pixels_are_those_that_this_process_would_decode(format: str, worker: DecodeProcess) -> None:
    data = saved(noise(70, 50), format)
    decoded = worker.decode(data, ImageLimits())
    assert (decoded.image.mode, decoded.size) == ("RGB", (70, 50))
    assert np.array_equal(np.asarray(decoded.image), np.asarray(load_image(data)))
    assert load_image(decoded) is decoded.image


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_transparent_images_are_drawn_on_white_where_a_model_wants_that(format: str, worker: DecodeProcess) -> None:
    image = Image.new("RGBA", (70, 50), (200, 0, 0, 255))
    image.paste((0, 0, 200, 0), (0, 0, 35, 50))
    data, limits = saved(image, format, lossless=True), ImageLimits(on_white=True)
    found = worker.decode(data, limits).image
    assert (found.getpixel((0, 0)), found.tobytes()) == ((255, 255, 255), load_image(data, limits).tobytes())
    assert worker.decode(data, ImageLimits()).image.tobytes() == load_image(data).tobytes() != found.tobytes()


def test_an_image_is_turned_upright(worker: DecodeProcess) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(noise(70, 50), "PNG", exif=exif)
    assert np.array_equal(np.asarray(worker.decode(data, ImageLimits()).image), np.asarray(load_image(data)))


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", ImageDecodeError), (b"no image", ImageDecodeError), (png(9000, 9000, (b"IDAT", b"")), ImageTooLargeError)]
    + [(png(*size, (b"IDAT", b"")), ImageTooLargeError) for size in ((32_000_000, 1), (1, 65_536))],
)
def test_errors_are_those_of_this_process(data: bytes, kind: type[ImageError], worker: DecodeProcess) -> None:
    with pytest.raises(kind) as here:
        load_image(data)
    with pytest.raises(kind) as there:
        worker.decode(data, ImageLimits())
    assert str(there.value) == str(here.value)


def test_memory_is_admitted_before_it_is_taken_and_a_refusal_leaves_the_worker_fit(worker: DecodeProcess) -> None:
    def refuse(needed: int) -> None:
        assert needed >= 7 * 3000 * 2000
        raise KeyError("no room")

    data = saved(Image.new("RGB", (3000, 2000)), "PNG")
    with pytest.raises(KeyError, match="no room"):
        worker.decode(data, ImageLimits(), refuse)
    assert worker.decode(data, ImageLimits()).size == (3000, 2000)


def test_an_image_that_takes_more_memory_than_its_header_promises_is_refused(worker: DecodeProcess) -> None:
    # Ten thousand times the same tag of a megabyte: the header is small, what it makes the reader keep is not.
    with pytest.raises(ImageTooLargeError, match="memory"):
        worker.decode(BOMBS["tiff_strips"](), ImageLimits())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_killed_from_outside_is_lost_and_ignores_signals_of_the_terminal(number: int) -> None:
    with started() as process:
        data = saved(noise(8, 8), "PNG")

        def send(needed: int) -> None:
            os.kill(process.pid, number)

        if number == signal.SIGKILL:
            with pytest.raises(WorkerLostError):
                process.decode(data, ImageLimits(), send)
            assert process.exit_code == -signal.SIGKILL
        else:
            assert process.decode(data, ImageLimits(), send).size == (8, 8)


def test_a_crash_of_the_decoder_is_an_error_of_the_image() -> None:
    with started() as process, pytest.raises(ImageDecodeError, match="crashed"):
        process.decode(saved(noise(8, 8), "PNG"), ImageLimits(), lambda _: os.kill(process.pid, signal.SIGSEGV))


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    script = (
        "import os, time\n"
        "from photonlite.images.isolation.process import DecodeProcess\n"
        "process = DecodeProcess(); process.wait_ready(); print(process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        ended = os.pidfd_open(pid)
        parent.kill()
    with os.fdopen(ended, "rb") as watched:
        assert select.select([watched], [], [], GUARD)[0], "the worker lives on"


def test_workers_import_no_torch() -> None:
    with started() as process:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "PIL" in maps
    assert "torch" not in maps


def test_answers_of_a_worker_are_json_and_validated() -> None:
    with started() as process:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            real, process._socket = process._socket, ours
            try:
                send_message(theirs, json.dumps({"size": [10**6, 10**6], "memory": 1, "cpu_s": 0}).encode())
                with pytest.raises(ImageTooLargeError, match="pixels"):
                    process.decode(b"data", ImageLimits())
                send_message(theirs, json.dumps({"error": "SystemExit", "message": "boo", "cpu_s": 0}).encode())
                with pytest.raises(ImageDecodeError, match="boo"):
                    process.decode(b"data", ImageLimits())
                theirs.sendall((2**60).to_bytes(8, "big"))
                process.kill()
                with pytest.raises(WorkerLostError):
                    process.decode(b"data", ImageLimits())
            finally:
                process._socket = real


def test_a_worker_that_answers_a_part_and_sleeps_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKSTOP_S", 0.2)
    with started() as process:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            real, process._socket = process._socket, ours
            theirs.sendall((100).to_bytes(8, "big") + b"{")
            with pytest.raises(ImageTimeoutError, match="was not decoded within"):
                process.decode(b"data", ImageLimits())
            process._socket = real
        assert process.wait_exit() == -signal.SIGKILL


def test_without_descriptors_for_both_files_none_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = os.memfd_create, []

    def once(*arguments: Any) -> int:
        if made:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(make(*arguments))
        return made[0]

    monkeypatch.setattr(os, "memfd_create", once)
    with pytest.raises(OSError, match="Too many"):
        DecodeProcess()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])

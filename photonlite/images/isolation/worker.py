"""Worker process that decodes untrusted images, one at a time.

`python -P -m photonlite.images.isolation.worker FILE PIXELS` speaks JSON over its standard input, a socket:

```
client   limits ─────────────────────> {"memory": bytes} ───────────> the next job
worker            {"size", "memory"} ─┘          {"size", "cpu_s"} ─┘   or {"error", "message"}
```

The image comes in through the shared memory FILE, and goes out through PIXELS. A timer of CPU time kills the process
inside any library when an image costs too much; a limit of the data segment bounds its memory. The process ends when
the other end of the socket is closed.
"""

import contextlib
import io
import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, BinaryIO, Final

from PIL import AvifImagePlugin, Image, ImageFile

from photonlite.config import ImageLimits
from photonlite.errors import ImageDecodeError, ImageError, ImageTooLargeError
from photonlite.images.decode import check_pixels, decode_opened, ignore_pillow_warnings, open_image, rgb_bands
from photonlite.images.memory import WEBP_HEADER, webp_bytes, webp_size, working_bytes
from photonlite.processes.messages import connect_to_parent, receive_message, send_message, send_ready

SPARE_BYTES: Final = 32 * 2**20  # beyond the announced amount: for the interpreter, small tables, fragmentation
_NAME: Final = "the image"
_MEMORY_SIZES: Final = os.open("/proc/self/statm", os.O_RDONLY)


def serve(connection: socket.socket, file: int, pixels: int) -> None:
    """Decode images until the socket is closed."""
    ignore_pillow_warnings()
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the stack of each thread would count as memory
    Image.new("LAB", (1, 1)).convert("RGB")  # imports Pillow's colours, which a confined process cannot
    with contextlib.suppress(EOFError, ConnectionError):
        send_ready(connection)
        while True:
            _decode_job(connection, json.loads(receive_message(connection)), file, pixels)
            limit_memory(None)


def limit_cpu(seconds: float) -> None:
    """Have the kernel kill this process after that much more CPU time; 0 removes the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory(more: int | None) -> None:
    """Limit the memory that this process may still take, beside `SPARE_BYTES`; None removes the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = hard if more is None else more + _data_bytes() + SPARE_BYTES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _decode_job(connection: socket.socket, job: dict[str, Any], file: int, pixels: int) -> None:
    limits = ImageLimits(**job["limits"])
    begun = time.process_time()
    limit_cpu(limits.decode_cpu_s)
    limit_memory(2 * job["bytes"])
    try:
        # libtiff would open another descriptor of a file.
        with io.BytesIO(os.pread(file, job["bytes"], 0)) as stream:
            image, (width, height), needed = _read_header(stream, limits)
            spent = time.process_time() - begun
            limit_cpu(0)
            _send(connection, {"size": (width, height), "memory": needed + 2 * job["bytes"], "cpu_s": spent})
            reply = json.loads(receive_message(connection))
            if not reply:  # the memory was refused, or the request has ended
                return
            allowed = limits.decode_cpu_s + limits.decode_cpu_s_per_megapixel * width * height / 1e6
            limit_cpu(max(0.001, allowed - spent))
            limit_memory(reply["memory"])
            image = image or open_image(_NAME, stream, limits)
            if image.width * image.height != width * height:
                raise ImageDecodeError(f"{_NAME} has two sizes: it is damaged, copy or save it again")
            answer: dict[str, Any] = {"size": write_pixels(image, pixels, limits.on_white)}
    except ImageError as error:
        answer = _error_answer(error)
    except MemoryError:
        answer = _error_answer(
            ImageTooLargeError(f"{_NAME} takes too much memory to decode: shrink it, or save it again")
        )
    limit_cpu(0)
    _send(connection, {**answer, "cpu_s": time.process_time() - begun})


def _read_header(stream: BinaryIO, limits: ImageLimits) -> tuple[ImageFile.ImageFile | None, tuple[int, int], int]:
    """Return the image, its size and the memory to decode; a WebP stays unopened, as opening allocates its canvas."""
    size = webp_size(stream.read(WEBP_HEADER))
    stream.seek(0)
    if size is not None:
        check_pixels(_NAME, *size, limits)
        return None, size, webp_bytes(size)
    image = open_image(_NAME, stream, limits)
    return image, image.size, working_bytes(image)


def write_pixels(image: ImageFile.ImageFile, pixels: int, on_white: bool = False) -> tuple[int, int]:
    """Decode, and write RGB ``[H, W, 3]`` to a file; return width and height of the upright image."""
    rgb, end = decode_opened(_NAME, image, on_white), 0
    for band in rgb_bands(rgb):
        end += os.pwrite(pixels, band, end)
    return rgb.size


def _error_answer(error: ImageError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)[:1000]}


def _data_bytes() -> int:
    return int(os.pread(_MEMORY_SIZES, 1000, 0).split()[5]) * resource.getpagesize()


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    send_message(connection, json.dumps(message).encode())


if __name__ == "__main__":
    serve(connect_to_parent(), *map(int, sys.argv[1:]))

"""Images on their way in: base64 to bytes, bytes to pixels, and the memory that each step takes."""

import asyncio
import binascii
import re
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Final, Self

import pybase64

from photonlite.errors import RequestCancelledError
from photonlite.images.decode import needed_bytes
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.source import DecodedImage
from photonlite.server.errors import CLIENT_CLOSED, HttpError
from photonlite.server.limits.limiter import Permit

_DATA_URI = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_SHOWN = 40
_LOOK_S = 0.5
"""Seconds between two looks at whether an event loop that does not answer has ended."""
# Some encoders break lines.
_SPACE = "\r\n\t "


KEPT_BYTES: Final = 7
"""Bytes that a pixel of a decoded image takes until its request ends: 4 for Pillow, and 3 while it is read."""


class Hold:
    """Bytes that a request holds while a block runs. The amount may change; `keep` leaves it to the request's end.

    Args:
        permit: Of the request.

    Attributes:
        size: Bytes that it holds now.
    """

    def __init__(self, permit: Permit) -> None:
        self.size = 0
        self._permit = permit
        self._ended = False

    def resize(self, size: int) -> None:
        """Hold so many bytes from now on.

        Raises:
            HttpError: 413 or 429, there is no room for more; it holds what it held before.
        """
        if self._ended:
            raise HttpError(CLIENT_CLOSED, "nobody waits for the image any more", code="client_closed")
        if size > self.size:
            self._permit.charge(size - self.size)
        else:
            self._permit.release(self.size - size)
        self.size = size

    def grow(self, size: int) -> None:
        """Hold so many bytes more; raises as `resize` does."""
        self.resize(self.size + size)

    def keep(self) -> None:
        """Leave the bytes to the request."""
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)
        self._ended = True


class RequestImages:
    """Opens the images of requests. Belongs to one event loop.

    Args:
        pool: Decodes them in other processes; None leaves the bytes to the model, which decodes them in this one.
    """

    def __init__(self, pool: DecodePool | None = None) -> None:
        self._pool = pool

    @property
    def gauges(self) -> dict[str, int]:
        """How the processes stand: how many there are, and the images that they are at or that wait for them."""
        pool = self._pool
        workers, running, waiting = (0, 0, 0) if pool is None else (len(pool.pids), pool.running, pool.waiting)
        return {"decode_workers": workers, "decode_running": running, "decode_waiting": waiting}

    async def open(self, data: bytes, hold: Hold) -> bytes | DecodedImage:
        """Open an image. Cancelling the task ends the work at once.

        Args:
            data: A file.
            hold: Is made to hold what decoding takes before it begins, and what is left after it.

        Raises:
            HttpError: 413 or 429, there is no room for the image.
            ImageError: It cannot be decoded, or takes more CPU time or memory than its size allows.
        """
        if self._pool is None:
            hold.resize(await asyncio.to_thread(needed_bytes, data))
            return data
        hold.resize(2 * len(data))  # a copy in shared memory, and what a codec may copy
        loop = asyncio.get_running_loop()

        def admit(needed: int) -> None:
            _call_on(loop, partial(hold.resize, needed))

        decoded = await self._pool.adecode(data, admit)
        hold.resize(KEPT_BYTES * decoded.size[0] * decoded.size[1])
        return decoded


def _call_on(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Call a function on an event loop from another thread, and wait; raises what it raises."""
    done: Future[None] = Future()

    def call() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    loop.call_soon_threadsafe(call)
    while not wait([done], timeout=_LOOK_S).done:
        if loop.is_closed():
            raise RequestCancelledError("the server has stopped")
    done.result()


def is_remote(value: str) -> bool:
    """Tell a URL that must be fetched from one that holds its image."""
    return re.match(r"https?://", value, re.IGNORECASE) is not None


def from_data_uri(value: str) -> bytes:
    """Read `data:image/jpeg;base64,...`. The declared type does not matter: the bytes tell what they are.

    Raises:
        HttpError: 400, it is no base64 data URI, or its base64 is damaged.
    """
    head = _DATA_URI.match(value)
    if head is None or not head[0].lower().endswith(";base64,"):
        raise HttpError(
            400,
            f"image_url {value[:_SHOWN]!r} is not a data URI in base64: send data:image/jpeg;base64,...",
            code="invalid_image_url",
        )
    code = value[head.end() :]
    if any(space in code for space in _SPACE):
        code = code.translate(str.maketrans("", "", _SPACE))
    try:
        # Not the standard library's: that one holds up all other requests for thirty times as long.
        return pybase64.b64decode(code, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise HttpError(400, f"the base64 of image_url is damaged: {cause}", code="invalid_image_url") from cause

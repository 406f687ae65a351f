"""Images of requests: base64 to bytes, bytes to pixels, and the memory that each step takes."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Final

import pybase64

from photonlite.errors import ImageDecodeError, RequestCancelledError
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.memory import needed_bytes
from photonlite.images.source import DecodedImage, named_image, read_data_uri
from photonlite.server.errors import HttpError
from photonlite.server.limits.limiter import Hold

_POLL_S = 0.5  # seconds between checks whether an event loop that does not answer has ended

KEPT_BYTES: Final = 7  # bytes that a pixel takes until its request ends: 4 for Pillow, and 3 while it is read


class RequestImages:
    """Decodes images in the processes of a pool, or leaves the bytes to the model; belongs to one event loop."""

    def __init__(self, pool: DecodePool | None = None) -> None:
        self._pool = pool

    @property
    def gauges(self) -> dict[str, int]:
        if self._pool is None:
            return dict.fromkeys(("decode_workers", "decode_running", "decode_waiting"), 0)
        pids, jobs = self._pool.pids, self._pool.jobs
        return {"decode_workers": len(pids), "decode_running": jobs.running, "decode_waiting": jobs.waiting}

    async def open(self, data: bytes, hold: Hold) -> bytes | DecodedImage:
        """Decode a file, resizing the hold to what that takes (413, 429); cancelling the task ends the work at once."""
        if self._pool is None:
            hold.resize(await asyncio.to_thread(needed_bytes, data))
            return data
        hold.resize(2 * len(data))  # a copy in shared memory, and what a codec may copy
        loop = asyncio.get_running_loop()
        decoded = await self._pool.adecode(data, lambda needed: _call_on(loop, partial(hold.resize, needed)))
        hold.resize(KEPT_BYTES * decoded.size[0] * decoded.size[1])
        return decoded


@contextmanager
def naming(place: int, count: int) -> Iterator[None]:
    """Put "image 3 of 5: " before the message of an error about an image, unless there is one image only."""
    try:
        with named_image(place, count):
            yield
    except HttpError as error:
        if count > 1 and error.status in (400, 413, 422):
            error.message = f"image {place} of {count}: {error.message}"
        raise


def _call_on(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Call a function on an event loop from another thread, and wait; raises what it raises."""
    done: Future[object] = Future()

    def call() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    loop.call_soon_threadsafe(call)
    while not wait([done], timeout=_POLL_S).done:
        if loop.is_closed():
            raise RequestCancelledError("the server has stopped")
    done.result()


def from_data_uri(value: str) -> bytes:
    """Decode the data URI of an `image_url`; raises 400."""
    try:
        # The standard library's decoder would block the event loop thirty times as long.
        return read_data_uri(value, partial(pybase64.b64decode, validate=True))
    except ImageDecodeError as cause:
        raise HttpError(400, f"image_url: {cause}", code="invalid_image_url") from cause

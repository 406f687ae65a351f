"""Pictures on their way into the engine: decoded and named by their content, cut into crops only when they are needed.

```
prepare         source ── decode ── hash ──> PreparedImage              on the thread that calls it
request_crops                                  └─ cut ──> crops         on a thread of the pool, when the engine asks,
                                                                       before pictures that wait to be prepared
```

A picture whose prefix is cached is never cut. The decoded pixels are kept, so that an evicted prefix can be rebuilt.
"""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageError, ModelError
from photonlite.images.crops import Crops, CropSpec, cut_crops
from photonlite.images.decode import ImageSource, load_image

_T = TypeVar("_T")

Buffer = Callable[[tuple[int, ...]], npt.NDArray[np.uint8]]
"""Gives memory of a shape, from which the device can copy without waiting."""


class ImagePool:
    """Threads that decode, hash and cut pictures.

    Args:
        spec: How pictures are cut.
        limits: How large they may be.
        threads: How many work at a time.
        buffer: Where the pixels of crops are put; plain memory unless given.
        on_ready: Called on a thread of the pool when crops that were asked for are there, or cannot be cut.
    """

    def __init__(
        self,
        spec: CropSpec,
        limits: ImageLimits,
        threads: int,
        *,
        buffer: Buffer | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._buffer = buffer
        self._on_ready = on_ready
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="photonlite-images")
        self._jobs: set[Future[Any]] = set()
        self._urgent: deque[Callable[[], None]] = deque()
        self._submitting = threading.Lock()

    def prepare(self, source: ImageSource, *, adapter: str = "", salt: str | None = None) -> "PreparedImage":
        """Decode a picture and name it by its content, on the calling thread.

        Args:
            source: See `images.decode.load_image`.
            adapter: The adapter that will read it: the same pixels mean something else to another one.
            salt: Whose it is; pictures of different salts share nothing.

        Raises:
            ImageError: It is not one picture, cannot be read, or is over a limit.
        """
        if isinstance(source, list | tuple):
            raise ImageError(
                f"a {type(source).__name__} of {len(source)} was handed in as the picture, but a request takes one "
                "picture for now: ask about each by itself, or about all with batch(); pixels go into a numpy array"
            )
        start = time.perf_counter()
        image = load_image(source, self._limits)
        key = picture_key(image, adapter, salt)
        return PreparedImage(self, image, key, salt, time.perf_counter() - start)

    def submit(self, job: Callable[[], _T]) -> Future[_T]:
        """Have something done on a thread of the pool.

        Raises:
            ModelError: The pool is closed.
        """
        with self._submitting:  # a job that runs is among those that `settle` waits for
            try:
                future = self._threads.submit(self._work, job)
            except RuntimeError as cause:
                raise ModelError("the model is closed: load it again") from cause
            self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    def hurry(self, job: Callable[[], None]) -> None:
        """Have something done before all that waits, because the engine waits for it.

        Raises:
            ModelError: The pool is closed.
        """
        self._urgent.append(job)
        # Whichever thread is free first does it, whatever it came for; a thread that finds it done does nothing.
        self.submit(_nothing)

    def settle(self) -> None:
        """Wait until everything submitted so far is done."""
        with self._submitting:
            jobs = list(self._jobs)
        wait(jobs)

    def close(self) -> None:
        """Take no more work, and wait for what is under way."""
        self._threads.shutdown()

    def _work(self, job: Callable[[], _T]) -> _T:
        while self._urgent:
            try:
                urgent = self._urgent.popleft()
            except IndexError:
                break  # another thread has just taken it
            urgent()
        return job()

    def _cut(self, image: Image.Image) -> Crops:
        crops = cut_crops(image, self._spec)
        if self._buffer is None:
            return crops
        pixels = self._buffer(crops.pixels.shape)
        pixels[...] = crops.pixels
        return Crops(pixels, crops.tiling, crops.picture_size)

    def _announce(self) -> None:
        if self._on_ready is not None:
            self._on_ready()


class PreparedImage:
    """A decoded picture, as the scheduler knows it: a `photonlite.sequence.Picture`.

    Args:
        pool: Cuts it.
        image: RGB; kept as it is.
        key: See `picture_key`.
        salt: With which it was made.
        preprocess_s: What decoding and hashing took.

    Attributes:
        pool: As given.
        key: As given.
        salt: As given.
        size: Width and height in pixels.
        crops: None until they are cut.
        failure: Why they could not be cut.
        preprocess_s: Seconds for decoding, hashing and, if it was done, cutting.
    """

    def __init__(self, pool: ImagePool, image: Image.Image, key: str, salt: str | None, preprocess_s: float) -> None:
        self.pool = pool
        self.key = key
        self.salt = salt
        self.size: tuple[int, int] = image.size
        self.crops: Crops | None = None
        self.failure: BaseException | None = None
        self.preprocess_s = preprocess_s
        self._image = image
        self._begun = False
        self._lock = threading.Lock()

    def request_crops(self) -> None:
        """Begin to cut, unless that has been done; from any thread, returns at once and never raises."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        try:
            self.pool.hurry(self._cut)
        except ModelError as error:
            self.failure = error
            self.pool._announce()

    def drop_crops(self) -> None:
        """Let go of the crops, page-locked megabytes, once they are encoded; they are cut again when asked for."""
        with self._lock:
            if self.crops is not None:
                self.crops = None
                self._begun = False

    def _cut(self) -> None:
        start = time.perf_counter()
        try:
            crops = self.pool._cut(self._image)
            self.preprocess_s += time.perf_counter() - start
            with self._lock:
                self.crops = crops
        except Exception as error:  # memory, above all; it is the picture's requests that fail, not the pool
            self.failure = error
        finally:
            self.pool._announce()


def _nothing() -> None:
    return


def picture_key(image: Image.Image, adapter: str = "", salt: str | None = None) -> str:
    """Name a picture by its content: the hex SHA-256 over size, mode and pixels, adapter and salt.

    The length of each part goes before it, so that no two different lists of parts read alike.

    Args:
        image: Decoded.
        adapter: Name of the adapter that reads it.
        salt: Of the tenant; none differs from an empty one.
    """
    parts = [f"{image.width}x{image.height}".encode(), image.mode.encode(), image.tobytes()]
    parts += [text.encode("utf-8", "surrogatepass") for text in (adapter, salt) if text is not None]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()

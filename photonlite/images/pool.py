"""Images on their way into the engine: decoded and named by their content, cut into crops only when they are needed.

```
prepare         source ── decode ── hash ── pack ──> PreparedImage      on the thread that calls it
request_crops                                          └─ cut ──> crops on a thread of the pool, when the engine asks,
                                                                       before images that wait to be prepared
```

An image whose prefix is cached is never cut. The decoded pixels are kept, so that an evicted prefix can be rebuilt.

Where the device makes the crops, images are packed for it instead (`images.packing`), and as that takes no longer
than handing the work to another thread, it is done at once: the engine need not ask. It asks for those that came when
too much lay packed already, and for those whose crops were dropped; images that are too large are cut here.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

import numpy as np
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageError, ModelError
from photonlite.images.crew import Crew
from photonlite.images.crops import Buffer, Crops, CropSpec, cut_crops, plain_memory
from photonlite.images.decode import DecodedImage, ImageSource, decoded_bytes, file_bytes, load_image
from photonlite.images.decode_pool import DecodePool
from photonlite.images.key import image_key
from photonlite.images.packing import pack_image
from photonlite.images.rgb import rgb_bytes
from photonlite.sequence import UncutImage

_T = TypeVar("_T")

_PACKED_AHEAD: Final = 256 * 2**20
"""Bytes of page-locked memory that hold images for which the engine has not asked."""


class ImagePool:
    """Threads that decode, hash and cut images.

    Args:
        spec: How images are cut.
        limits: How large they may be.
        threads: How many work at a time.
        buffer: Where pixels are put that the device copies; plain memory unless given.
        packs: Whether the device makes the crops itself, of images that are packed for it.
        on_ready: Called on a thread of the pool when crops that were asked for are there, or cannot be cut.
        decoder: Decodes image files in other processes, and is closed with the pool; None decodes them in this one.
    """

    def __init__(
        self,
        spec: CropSpec,
        limits: ImageLimits,
        threads: int,
        *,
        buffer: Buffer = plain_memory,
        packs: bool = False,
        on_ready: Callable[[], None] | None = None,
        decoder: DecodePool | None = None,
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._buffer = buffer
        self._packs = packs
        self._ahead = _Allowance(_PACKED_AHEAD)
        self._on_ready = on_ready
        self._decoder = decoder
        # A thread that waits for another process is none that decodes, hashes or cuts.
        waiting = 0 if decoder is None else decoder.most_running
        self._threads = ThreadPoolExecutor(threads + waiting, thread_name_prefix="photonlite-images")
        self._crew = Crew(self._threads, min(threads, os.cpu_count() or 1) - 1)
        self._jobs: set[Future[Any]] = set()
        self._urgent: deque[Callable[[], None]] = deque()
        self._submitting = threading.Lock()

    def decoded_bytes(self, source: ImageSource) -> int:
        """Return how many bytes an image takes once it is decoded, from its header.

        Returns:
            0 where the header cannot be read, or must not be read in this process.
        """
        isolated = self._decoder is not None and not isinstance(source, (Image.Image, DecodedImage, np.ndarray))
        return 0 if isolated else decoded_bytes(source, self._limits)

    def prepare(
        self,
        source: ImageSource,
        *,
        adapter: str = "",
        cache_salt: str = "",
        checkpoint: Callable[[], None] | None = None,
    ) -> "PreparedImage":
        """Decode an image and name it by its content, on the calling thread.

        Args:
            source: See `images.decode.load_image`.
            adapter: The adapter that will read it: the same pixels mean something else to another one.
            cache_salt: Whose it is; images of different salts share nothing.
            checkpoint: Called when the image is decoded, and when it is named; what it raises ends the work.

        Raises:
            ImageError: It is not one image, cannot be read, or is over a limit.
        """
        if isinstance(source, list | tuple):
            raise ImageError(
                f"a {type(source).__name__} of {len(source)} was handed in as the image, but a request takes one "
                "image for now: ask about each by itself, or about all with batch(); pixels go into a numpy array"
            )
        check = checkpoint or _nothing
        start = time.perf_counter()
        image = self._load(source)
        check()
        pixels = rgb_bytes(image)
        key = image_key(image, pixels, adapter, cache_salt, crew=self._crew)
        check()
        uncut = self._pack_ahead(pixels, image.size)
        return PreparedImage(self, image, key, cache_salt, time.perf_counter() - start, uncut)

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
        if self._decoder is not None:
            self._decoder.close()
        self._threads.shutdown()

    def _load(self, source: ImageSource) -> Image.Image:
        data = None if self._decoder is None else file_bytes(source, self._limits)
        if self._decoder is not None and data is not None:
            return self._decoder.decode(data).image
        return load_image(source, self._limits)

    def _work(self, job: Callable[[], _T]) -> _T:
        while self._urgent:
            try:
                urgent = self._urgent.popleft()
            except IndexError:
                break  # another thread has just taken it
            urgent()
        return job()

    def _pack_ahead(self, pixels: bytes, size: tuple[int, int]) -> UncutImage | None:
        """Pack an image before the engine asks; None where the host cuts it, or too much lies packed already."""
        if not self._packs or not self._ahead.take(len(pixels)):
            return None
        try:
            packed = pack_image(pixels, size, self._spec, self._buffer)
        except (MemoryError, RuntimeError):  # page-locked memory has run out: the engine will ask, and be told
            packed = None
        if packed is None:
            self._ahead.give(len(pixels))
        else:
            weakref.finalize(packed.packed, self._ahead.give, len(pixels)).atexit = False
        return packed

    def _cut(self, image: Image.Image) -> Crops | UncutImage:
        if self._packs:
            packed = pack_image(rgb_bytes(image), image.size, self._spec, self._buffer)
            if packed is not None:
                return packed
        return cut_crops(image, self._spec, crew=self._crew, buffer=self._buffer)

    def _announce(self) -> None:
        if self._on_ready is not None:
            self._on_ready()


class PreparedImage:
    """A decoded image, as the scheduler knows it: a `photonlite.sequence.Image`.

    Args:
        pool: Cuts it.
        image: RGB; kept as it is.
        key: See `image_key`.
        cache_salt: With which it was made.
        preprocess_s: What decoding and hashing took.
        crops: What the device makes the crops of, where that is there already.

    Attributes:
        pool: As given.
        key: As given.
        cache_salt: As given.
        size: Width and height in pixels.
        crops: The crops, or what the device makes them of; None until they are there.
        failure: Why they could not be made.
        preprocess_s: Seconds for decoding, hashing and, if it was done, cutting or packing.
    """

    def __init__(
        self,
        pool: ImagePool,
        image: Image.Image,
        key: str,
        cache_salt: str,
        preprocess_s: float,
        crops: UncutImage | None = None,
    ) -> None:
        self.pool = pool
        self.key = key
        self.cache_salt = cache_salt
        self.size: tuple[int, int] = image.size
        self.crops: Crops | UncutImage | None = crops
        self.failure: BaseException | None = None
        self.preprocess_s = preprocess_s
        self._image = image
        self._begun = crops is not None
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
        except Exception as error:  # memory, above all; it is the image's requests that fail, not the pool
            self.failure = error
        finally:
            self.pool._announce()


def _nothing() -> None:
    return


class _Allowance:
    """An amount that many take from and give back to."""

    def __init__(self, amount: int) -> None:
        self._left = amount
        # Giving back may happen wherever memory is collected, also in the middle of taking.
        self._lock = threading.RLock()

    def take(self, amount: int) -> bool:
        """Take an amount; False where there is not so much left."""
        with self._lock:
            if amount > self._left:
                return False
            self._left -= amount
            return True

    def give(self, amount: int) -> None:
        """Give it back."""
        with self._lock:
            self._left += amount

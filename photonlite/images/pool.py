"""Images on their way into the engine: decoded and hashed first, cut into crops only when these are needed.

```
prepare         source ── decode ── hash ── pack ──> PreparedImage      on the thread that calls it
request_crops                                          └─ cut ──> crops on a thread of the pool, when the engine asks,
                                                                       before images that wait to be prepared
```

An image whose prefix is cached is never cut, nor one whose embeddings are stored (`Stored`). The decoded
pixels are kept, so that what was evicted can be computed again.

Where the device makes the crops, images are packed for it at once (`images.packing`). The engine then requests crops
only of images that came when too much was packed already, of those whose crops were dropped, and of too large ones.
"""

import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Final, Protocol, TypeGuard, TypeVar

import numpy as np
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ModelError
from photonlite.image_inputs import PatchImage, PrefixPages, StoredImage, UncutImage
from photonlite.images.crops import Allocator, CropSpec, ImageCrops, allocate_array
from photonlite.images.decode import file_bytes, image_size, load_image, rgb_bytes
from photonlite.images.fetch import ImageFetcher
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.packing import pack_image
from photonlite.images.resize import RunTasks, Task, run_in_turn
from photonlite.images.source import DecodedImage, ImageSource, is_url
from photonlite.images.thumbnail import make_thumbnail

_T = TypeVar("_T")

_PACKED_AHEAD: Final = 256 * 2**20  # bytes of page-locked memory for images packed before the engine requests them
_HASHED_BYTES: Final = 2**19  # bytes of pixels that one thread hashes at a time, about 0.25 ms


class ImageSpec(Protocol):
    """How a checkpoint's images are cut for its encoder."""

    def cut(
        self, image: Image.Image, *, threads: int, run_tasks: RunTasks, buffer: Allocator
    ) -> ImageCrops | PatchImage:
        """Cut an RGB image in tasks for so many threads, in memory from `buffer`; may raise an ImageError."""


class Stored(Protocol):
    """What was computed for images before, by the keys of these images."""

    def expects(self, key: str, cache_salt: str) -> bool:
        """Whether `load` is likely to find something; reads no file."""

    def load(self, key: str, cache_salt: str, size: tuple[int, int], pages: PrefixPages | None) -> StoredImage | None:
        """Return what is kept of an image of that width and height, with these pages if they are kept too.

        Reads a disk on this thread, and never raises.
        """


class ImagePool:
    """Threads that decode, hash and cut images.

    With `packs`, the device makes the crops. `on_ready` is called on a thread of the pool when requested crops are
    ready, or cannot be cut. `decoder` decodes image files in other processes, `fetcher` fetches URLs, which are refused
    without one; both are closed with the pool. What `stored` has takes the place of crops.
    """

    def __init__(
        self,
        spec: ImageSpec,
        limits: ImageLimits,
        threads: int,
        *,
        buffer: Allocator = allocate_array,
        packs: bool = False,
        on_ready: Callable[[], None] = lambda: None,
        decoder: DecodePool | None = None,
        fetcher: ImageFetcher | None = None,
        stored: Stored | None = None,
    ) -> None:
        self._spec = spec
        self._limits = limits
        self.buffer = buffer
        self._packs = spec if packs and isinstance(spec, CropSpec) else None
        self._ahead = _PACKED_AHEAD
        self._ahead_lock = threading.RLock()  # finalizers take bytes back whenever memory is collected
        self.on_ready = on_ready
        self._decoder = decoder
        self._fetcher = fetcher
        self._stored = stored
        # Threads that wait for a decoding process come on top: they do no work.
        waiting = 0 if decoder is None else decoder.most_running
        self._threads = ThreadPoolExecutor(threads + waiting, thread_name_prefix="photonlite-images")
        self._working = min(threads, os.cpu_count() or 1)
        self._run_tasks = partial(share_tasks, self._threads, self._working - 1)
        self._urgent: deque[Callable[[], None]] = deque()

    def fetches(self, source: ImageSource) -> TypeGuard[str]:
        """Whether a source is a URL that may be fetched."""
        return self._fetcher is not None and is_url(source)

    def fetch(self, url: str, hold: Callable[[int], None]) -> "Future[bytes]":
        """Fetch an image; `hold` is called with the bytes that this takes so far."""
        assert self._fetcher is not None, "ask `fetches` first"
        return self._fetcher.submit(url, hold)

    def image_size(self, source: ImageSource) -> tuple[int, int] | None:
        """Return width and height from an image's header; None where this process cannot, or must not, read it."""
        isolated = self._decoder is not None and not isinstance(source, (Image.Image, DecodedImage, np.ndarray))
        return None if isolated else image_size(source, self._limits)

    def prepare(
        self,
        source: ImageSource,
        *,
        cache_salt: str = "",
        adapter_key: str = "",
        checkpoint: Callable[[], None] = lambda: None,
    ) -> "PreparedImage":
        """Decode an image and hash its content, on the calling thread; raises an ImageError.

        Images with different cache salts or adapters share no cache entries. `checkpoint` is called after decoding and
        after hashing; an exception that it raises ends the work.
        """
        start = time.perf_counter()
        image = self._load(source)
        checkpoint()
        pixels = rgb_bytes(image)
        key = image_key(image, pixels, cache_salt, run_tasks=self._run_tasks)
        checkpoint()
        # It is fetched when the engine asks: waiting requests must not hold more than host memory has room for.
        expected = self._stored is not None and self._stored.expects(stored_key(key, adapter_key), cache_salt)
        uncut = None if expected else self._pack_ahead(pixels, image.size)
        spent = time.perf_counter() - start
        return PreparedImage(self, image, key, cache_salt, spent, uncut, adapter_key=adapter_key)

    def load_stored(
        self, key: str, cache_salt: str, size: tuple[int, int], pages: PrefixPages | None
    ) -> StoredImage | None:
        """Return what is stored of an image of that width and height; may read a disk."""
        return None if self._stored is None else self._stored.load(key, cache_salt, size, pages)

    def submit(self, job: Callable[[], _T]) -> Future[_T]:
        """Run a job on a thread of the pool; ModelError once it is closed."""
        try:
            return self._threads.submit(self._work, job)
        except RuntimeError as cause:
            raise ModelError("the model is closed: load it again") from cause

    def hurry(self, job: Callable[[], None]) -> None:
        """Run a job, for which the engine waits, before all that are queued."""
        self._urgent.append(job)
        # The first free thread runs it before its own job; this empty job makes sure that there is such a thread.
        self.submit(lambda: None)

    def close(self) -> None:
        """Refuse further jobs, and wait until the submitted ones are done."""
        if self._decoder is not None:
            self._decoder.close()
        if self._fetcher is not None:
            self._fetcher.close()
        self._threads.shutdown()

    def cut(self, image: Image.Image) -> ImageCrops | UncutImage | PatchImage:
        """Return the crops or patches of a decoded image, or what the device makes crops of."""
        if self._packs is not None:
            packed = pack_image(rgb_bytes(image), image.size, self._packs, self.buffer)
            if packed is not None:
                return packed
        return self._spec.cut(image, threads=self._working, run_tasks=self._run_tasks, buffer=self.buffer)

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

    def _pack_ahead(self, pixels: memoryview, size: tuple[int, int]) -> UncutImage | None:
        """Pack an image before the engine requests it; None where the host cuts it, or too much is packed already."""
        if self._packs is None or not self._reserve_ahead(len(pixels)):
            return None
        try:
            packed = pack_image(pixels, size, self._packs, self.buffer)
        except (MemoryError, RuntimeError):  # page-locked memory has run out: the engine's request gets the error
            packed = None
        if packed is None:
            self._reserve_ahead(-len(pixels))
        else:
            weakref.finalize(packed.packed, self._reserve_ahead, -len(pixels)).atexit = False
        return packed

    def _reserve_ahead(self, size: int) -> bool:
        """Reserve bytes for packed images, or take some back; False where too few are left."""
        with self._ahead_lock:
            if size > self._ahead:
                return False
            self._ahead -= size
            return True


class PreparedImage:
    """A decoded image, as the scheduler knows it: a `photonlite.image_inputs.ImageRef`."""

    def __init__(
        self,
        pool: ImagePool,
        image: Image.Image,
        key: str,
        cache_salt: str,
        preprocess_s: float,
        crops: UncutImage | None = None,
        box: tuple[int, int, int, int] | None = None,
        *,
        adapter_key: str = "",
    ) -> None:
        self.pool = pool
        self.key = key
        self.cache_salt = cache_salt
        self.size: tuple[int, int] = image.size if box is None else (box[2] - box[0], box[3] - box[1])
        self.crops: ImageCrops | UncutImage | PatchImage | StoredImage | None = crops  # None until they are ready
        self.failure: BaseException | None = None  # why crops could not be made
        self.preprocess_s = preprocess_s  # of decoding, hashing and, if it was done, cutting or packing
        self._image = image
        self._box = box  # the part of it that this image is
        self._adapter_key = adapter_key  # of the request, which encodes it in its own way
        self._requested = crops is not None
        self._lock = threading.Lock()

    @cached_property
    def thumbnail(self) -> bytes:
        """The image as a small JPEG; kept with its pixels."""
        return make_thumbnail(self._image)

    def request_crops(self, pages: PrefixPages | None = None) -> None:
        """Begin to cut, or to read what is stored; from any thread, returns at once and never raises.

        Does nothing where that was requested before, by a request with other `pages` perhaps.
        """
        with self._lock:
            if self._requested:
                return
            self._requested = True
        try:
            self.pool.hurry(partial(self._cut, pages))
        except ModelError as error:
            self.failure = error
            self.pool.on_ready()

    def part(self, box: tuple[int, int, int, int]) -> "PreparedImage":
        """Return a part (x_min, y_min, x_max, y_max, in pixels) as an image; until it is cut it takes no memory."""
        key = hashlib.sha256(f"{self.key} {box}".encode()).hexdigest()
        return PreparedImage(
            self.pool, self._image, key, self.cache_salt, 0.0, box=box, adapter_key=self._adapter_key
        )  # fmt: skip

    def for_adapter(self, adapter_key: str) -> "PreparedImage":
        """Return the image as a request with an adapter takes it: with what is stored of that adapter's encoding.

        One whose crops could not be made is tried again: an encoded image outlives a shortage of memory.
        """
        if adapter_key == self._adapter_key and self.failure is None:
            return self
        return PreparedImage(
            self.pool, self._image, self.key, self.cache_salt, 0.0, box=self._box, adapter_key=adapter_key
        )  # fmt: skip

    def drop_crops(self) -> None:
        """Release the crops, page-locked megabytes, once they are encoded; they can be requested again."""
        with self._lock:
            if self.crops is not None:
                self.crops = None
                self._requested = False

    def _cut_now(self) -> ImageCrops | UncutImage | PatchImage:
        return self.pool.cut(self._image if self._box is None else self._image.crop(self._box))

    def _cut(self, pages: PrefixPages | None) -> None:
        start = time.perf_counter()
        try:
            stored_as = stored_key(self.key, self._adapter_key)
            crops = self.pool.load_stored(stored_as, self.cache_salt, self.size, pages) or self._cut_now()
            self.preprocess_s += time.perf_counter() - start
            with self._lock:
                self.crops = crops
        except Exception as error:  # out of memory, above all; only the image's requests fail
            self.failure = error
        finally:
            self.pool.on_ready()


def stored_key(key: str, adapter_key: str) -> str:
    """Return the key under which the encoding of an image is kept: an adapter has its own, as in `Sequence`."""
    return f"{key} {adapter_key}" if adapter_key else key


def image_key(
    image: Image.Image, pixels: memoryview, cache_salt: str = "", *, run_tasks: RunTasks = run_in_turn
) -> str:
    """Return the hex SHA-256 over size, mode and pixels of an image, and the cache salt.

    The length of each part precedes it, so that different lists of parts never read alike. Pixels enter as digests of
    pieces, which several threads can compute.
    """
    pieces = [pixels[start : start + _HASHED_BYTES] for start in range(0, len(pixels), _HASHED_BYTES)]
    digests = [b""] * len(pieces)

    def hash_piece(index: int) -> None:
        digests[index] = hashlib.sha256(pieces[index]).digest()

    run_tasks([partial(hash_piece, index) for index in range(len(pieces))])
    parts = [f"{image.width}x{image.height}".encode(), image.mode.encode(), b"".join(digests)]
    parts.append(cache_salt.encode("utf-8", "surrogatepass"))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def share_tasks(executor: Executor, helpers: int, tasks: Sequence[Task]) -> None:
    """Run tasks on the calling thread and up to `helpers` of an executor, wait for all, and raise the first error.

    The caller runs every task that no helper has begun, so it may itself occupy the executor's last free thread.
    """
    waiting = deque(tasks)
    done = threading.Semaphore(0)
    failures: list[BaseException] = []

    def work() -> None:
        while waiting:
            try:
                task = waiting.popleft()
            except IndexError:
                return  # another thread has just taken the last one
            try:
                task()
            except BaseException as error:
                failures.append(error)
            finally:
                done.release()

    for _ in range(min(helpers, len(tasks) - 1)):
        try:
            executor.submit(work)
        except RuntimeError:
            break  # the executor is shutting down: the caller runs all tasks
    work()
    for _ in tasks:
        done.acquire()
    if failures:
        raise failures[0]

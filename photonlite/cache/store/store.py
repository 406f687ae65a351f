"""The store: embeddings of images behind the prefix cache, so that a later question does not encode them again.

```
prefix cache (device) ── evicted ──> host memory ──> disk, shared by processes
                                       └── a later question about the same image takes what is nearest
```

Embeddings go to all tiers when they are made, and come from the first that has them. In this process they are known by
the image's key, which holds pixels and cache salt; on a disk also by all else that they depend on.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from photonlite.cache.store.disk import DiskTier
from photonlite.cache.store.memory import MemoryTier
from photonlite.images.crops import Allocator, allocate_array
from photonlite.sequence import StoredImage

_logger = logging.getLogger("photonlite")

_WAITING_BYTES: Final = 64 * 2**20
"""Embeddings that wait to be written; beyond that, where a disk is slower than the encoder, they are not."""


class DiskStore:
    """The disk tier for one model.

    `context` is all that embeddings depend on but the image, as text. Where finding it out takes seconds it is a
    function, called on the thread that writes; until then the disk has nothing.
    """

    def __init__(self, tier: DiskTier, context: str | Callable[[], str]) -> None:
        self.loads = 0
        self.misses = 0  # that `has` had promised: damaged, or removed meanwhile
        self.skipped = 0  # embeddings that were not written, because too many waited
        self._tier = tier
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="photonlite-store")
        self._context: Future[str] = Future()
        if isinstance(context, str):
            self._context.set_result(context)
        else:
            self._thread.submit(self._find_context, context)
        self._waiting = 0
        self._lock = threading.Lock()

    def has(self, key: str, cache_salt: str) -> bool:
        full = self._full_key(key)
        return full is not None and self._tier.has(full, cache_salt)

    def read(self, key: str, cache_salt: str, buffer: Allocator) -> StoredImage | None:
        full = self._full_key(key)
        found = None if full is None else self._tier.read(full, cache_salt, buffer)
        self.loads, self.misses = self.loads + (found is not None), self.misses + (found is None)
        return found

    def write(self, key: str, cache_salt: str, image: StoredImage) -> None:
        """Write embeddings on another thread; returns at once."""
        size = image.data.nbytes
        with self._lock:
            if self._waiting + size > _WAITING_BYTES:
                self.skipped += 1
                return
            self._waiting += size
        self._thread.submit(self._write, key, cache_salt, image)

    def close(self) -> None:
        """Write what waits."""
        self._thread.shutdown()

    def _find_context(self, context: Callable[[], str]) -> None:
        try:
            self._context.set_result(context())
        except Exception as error:
            _logger.warning("nothing is stored on disk", exc_info=True)
            self._context.set_exception(error)

    def _write(self, key: str, cache_salt: str, image: StoredImage) -> None:
        try:
            if (full := self._full_key(key)) is not None:
                self._tier.write(full, cache_salt, image)
        except Exception:
            _logger.exception("embeddings are not stored")
        finally:
            with self._lock:
                self._waiting -= image.data.nbytes

    def _full_key(self, key: str) -> str | None:
        """Return the name of an image's embeddings on disk; None while that is unknown, or where it failed."""
        if not self._context.done() or self._context.exception() is not None:
            return None
        return hashlib.sha256(f"{self._context.result()}\n{key}".encode()).hexdigest()


class ImageStore:
    """Embeddings in host memory, at most `memory_bytes`, and on a disk; methods may be called from any thread."""

    def __init__(self, memory_bytes: int, disk: DiskStore | None = None) -> None:
        self._memory = MemoryTier(memory_bytes)
        self._disk = disk
        self.buffer: Allocator = allocate_array  # memory from which the device copies

    @property
    def gauges(self) -> dict[str, float]:
        return {"stored_images": len(self._memory), "stored_bytes": self._memory.bytes}

    @property
    def counters(self) -> dict[str, int]:
        disk = self._disk
        return {} if disk is None else {"store_loads": disk.loads, "store_misses": disk.misses}

    def find(self, key: str) -> StoredImage | None:
        """Return an image's embeddings if they are in host memory; does not wait."""
        return self._memory.get(key)

    def expects(self, key: str, cache_salt: str) -> bool:
        """Whether `load` is likely to find an image's embeddings; does not read them."""
        return self._disk is not None and self._disk.has(key, cache_salt)

    def load(self, key: str, cache_salt: str) -> StoredImage | None:
        """Return an image's embeddings from the nearest tier that has them; may read a disk, and never raises."""
        found = self._memory.get(key)
        try:
            if found is None and self._disk is not None and self._disk.has(key, cache_salt):
                found = self._disk.read(key, cache_salt, self.buffer)
                if found is not None:
                    self._memory.put(key, found)
        except Exception:  # such as memory that is short: the image is encoded
            _logger.warning("stored embeddings are not read", exc_info=True)
        return found

    def keep(self, key: str, cache_salt: str, image: StoredImage) -> None:
        """Keep the embeddings of an image that was encoded; does not wait for a disk."""
        self._memory.put(key, image)
        if self._disk is not None:
            self._disk.write(key, cache_salt, image)

    def close(self) -> None:
        """Write what waits to be written."""
        if self._disk is not None:
            self._disk.close()

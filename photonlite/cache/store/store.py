"""The store: what was computed for images, behind the prefix cache, so that a later question does not compute it again.

```
prefix cache (device) ── evicted ──> host memory ──> disk, shared by processes
                                       └── a later question about the same image takes what is nearest
```

It goes to the tiers where it pays when it is made (see `policy`), and comes from the first that has it. In this process
embeddings are known by the image's key, which holds pixels, cache salt and adapter, and pages by the key of the prefix
block that ends with the image, which holds all that stands before it as well; on a disk both also by all else that
numbers depend on.
"""

import contextlib
import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from photonlite.cache.store.arena import HostArena
from photonlite.cache.store.budget import CopyBudget
from photonlite.cache.store.disk import DiskTier, NumberFormat
from photonlite.cache.store.memory import MemoryTier
from photonlite.cache.store.policy import Kind, TierPolicy
from photonlite.image_inputs import HostTensor, PrefixPages, StoredImage, StoredPages
from photonlite.images.crops import Allocator, allocate_array

_logger = logging.getLogger("photonlite")

WAITING_BYTES: Final = 64 * 2**20
"""That wait to be written; beyond that, where a disk is slower than the device, more is not."""

_LEAST_IMAGES: Final = 4
"""Images whose pages host memory must have room for, or none are copied there; so is that of its arena."""

_PROBE_BYTES: Final = 4 * 2**20

Size = tuple[int, int]  # of an image: width and height in pixels


class DiskStore:
    """The disk tier for one model.

    `context` is all that computed numbers depend on but the image, as text. Where finding it out takes seconds it is a
    function, called on the thread that writes; until then the disk has nothing. That thread measures the disk at first.
    `expected` returns what the model takes for an image of a size, or for so many pages: a file with anything else is
    a miss.
    """

    def __init__(
        self,
        tier: DiskTier,
        context: str | Callable[[], str],
        policy: TierPolicy,
        expected: Callable[[Size | int], NumberFormat],
    ) -> None:
        self.loads = 0
        self.misses = 0  # that `has` had promised: damaged, or removed meanwhile
        self.skipped = 0  # that were not written, because too much waited
        self._tier = tier
        self._policy = policy
        self._expected = expected
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="photonlite-store")
        self._context: Future[str] = Future()
        if isinstance(context, str):
            self._context.set_result(context)
        else:
            self._thread.submit(self._find_context, context)
        self.measured = self._thread.submit(self._measure)
        self._waiting = 0
        self._lock = threading.Lock()

    def has(self, key: str, cache_salt: str, kind: Kind) -> bool:
        full = self._full_key(key, kind)
        if full is None or not self._tier.has(full, cache_salt):
            return False
        if not (pays := self._policy.pays(kind, "disk")):
            self._policy.forget_read("disk")
        return pays

    def read(self, key: str, cache_salt: str, kind: Kind, size: Size | int, buffer: Allocator) -> HostTensor | None:
        full, begun = self._full_key(key, kind), time.perf_counter()
        found = None if full is None else self._tier.read(full, cache_salt, self._expected(size), buffer)
        if found is not None:
            self._policy.note_read("disk", found.data.nbytes, time.perf_counter() - begun)
        self.loads, self.misses = self.loads + (found is not None), self.misses + (found is None)
        return found

    def write(self, key: str, cache_salt: str, kind: Kind, tensor: HostTensor) -> None:
        """Write numbers on another thread if that pays; returns at once."""
        size = tensor.data.nbytes
        with self._lock:
            if self._waiting and self._waiting + size > WAITING_BYTES:
                self.skipped += 1
                return
            self._waiting += size
        # At interpreter exit the thread pool shuts down before the engine: the entry is not stored then.
        with contextlib.suppress(RuntimeError):
            self._thread.submit(self._write, key, cache_salt, kind, tensor)

    def close(self) -> None:
        """Write what waits."""
        self._thread.shutdown()

    def _find_context(self, context: Callable[[], str]) -> None:
        try:
            self._context.set_result(context())
        except Exception as error:
            _logger.warning("nothing is stored on disk", exc_info=True)
            self._context.set_exception(error)

    def _measure(self) -> None:
        try:
            self._policy.note_read("disk", _PROBE_BYTES, self._tier.measure(_PROBE_BYTES))
        except OSError as error:
            _logger.warning("the store's disk is not measured: %s", error)

    def _write(self, key: str, cache_salt: str, kind: Kind, tensor: HostTensor) -> None:
        try:
            full = self._full_key(key, kind)
            if full is not None and self._policy.pays(kind, "disk"):
                self._tier.write(full, cache_salt, tensor)
        except Exception:
            _logger.exception("what was computed for an image is not stored")
        finally:
            with self._lock:
                self._waiting -= tensor.data.nbytes

    def _full_key(self, key: str, kind: Kind) -> str | None:
        """Return the name of an image's numbers on disk; None while that is unknown, or where it failed."""
        if not self._context.done() or self._context.exception() is not None:
            return None
        return hashlib.sha256(f"{self._context.result()}\n{kind} {key}".encode()).hexdigest()


class ImageStore:
    """Numbers of images in host memory, at most `memory_bytes`, and on a disk; any thread may call all methods.

    They lie in `arena` if there is one. With a budget, images that are not asked about again are not all kept.
    """

    def __init__(
        self,
        memory_bytes: int,
        policy: TierPolicy,
        disk: DiskStore | None = None,
        *,
        arena: HostArena | None = None,
        budget: CopyBudget | None = None,
    ) -> None:
        self.policy = policy
        self.buffer: Allocator = allocate_array  # memory from which the device copies, beside the arena
        self._memory = MemoryTier(memory_bytes)
        self._disk = disk
        self._arena = arena
        self._budget = budget

    @property
    def gauges(self) -> dict[str, float]:
        return {"stored_tensors": len(self._memory), "stored_bytes": self._memory.bytes}

    @property
    def counters(self) -> dict[str, int]:
        disk = self._disk
        return {} if disk is None else {"store_loads": disk.loads, "store_misses": disk.misses}

    def expects(self, key: str, cache_salt: str) -> bool:
        """Whether `load` is likely to find something; reads no file."""
        in_memory = self._in_memory(key, "embeddings") is not None
        return in_memory or (self._disk is not None and self._disk.has(key, cache_salt, "embeddings"))

    def load(self, key: str, cache_salt: str, size: Size, place: PrefixPages | None = None) -> StoredImage | None:
        """Return what is stored of an image and of pages up to its end, each from the nearest tier.

        May read a disk, and never raises.
        """
        try:
            embeddings = self._find(key, cache_salt, "embeddings", size)
            if embeddings is None:
                return None
            if self._budget is not None:
                self._budget.note_found(key, self.policy.saved("embeddings", "memory") * embeddings.data.nbytes)
            pages = None
            if place is not None:
                pages = self._find(place.key, cache_salt, "pages", place.stop - place.first)
            return StoredImage(embeddings, None if place is None or pages is None else StoredPages(place, pages))
        except Exception:  # such as memory that is short: the image is encoded
            _logger.warning("what is stored of an image is not read", exc_info=True)
            return None

    def wants(self, image: str, kind: Kind, units: int, size: int) -> bool:
        """Whether what was computed for an image, so many bytes of crops or positions, is worth a copy to the host."""
        self.policy.note_units(kind, units, size)
        worth = self.policy.repays if kind == "pages" else self.policy.pays
        remembered = (kind != "pages" or size <= self._memory.limit // _LEAST_IMAGES) and worth(kind, "memory")
        if not remembered and (self._disk is None or not worth(kind, "disk")):
            return False
        if self._budget is None:
            return True
        computing = self.policy.computing(kind)
        seconds = None if computing is None else size * computing
        if kind == "pages":
            return self._budget.allows_pages(image, seconds or 0.0)
        return self._budget.allows(image, size, seconds)

    def allocate(self, size: int) -> npt.NDArray[np.uint8] | None:
        """Return memory from which the device copies, where need be that of what is worth least; None without any."""
        if self._arena is None:
            return self.buffer((size,))
        if size > self._arena.size // _LEAST_IMAGES:
            return None
        while (found := self._arena.take(size)) is None and self._memory.evict():
            pass
        return found

    def keep(self, key: str, cache_salt: str, kind: Kind, tensor: HostTensor, units: int) -> None:
        """Keep embeddings of an image, or pages by their prefix; does not wait for a disk."""
        self.policy.note_units(kind, units, tensor.data.nbytes)
        self._remember(key, kind, tensor)
        if self._disk is not None:
            self._disk.write(key, cache_salt, kind, tensor)

    def close(self) -> None:
        """Write what waits to be written."""
        if self._disk is not None:
            self._disk.close()

    def _in_memory(self, key: str, kind: Kind) -> HostTensor | None:
        return self._memory.get(_name(key, kind)) if self.policy.pays(kind, "memory") else None

    def _find(self, key: str, cache_salt: str, kind: Kind, size: Size | int) -> HostTensor | None:
        if (known := self._in_memory(key, kind)) is not None:
            return known
        if self._disk is None or not self._disk.has(key, cache_salt, kind):
            return None
        found = self._disk.read(key, cache_salt, kind, size, self._allocate_array)
        if found is not None:
            self._remember(key, kind, found)
        return found

    def _allocate_array(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        found = self.allocate(math.prod(shape))
        return self.buffer(shape) if found is None else found.reshape(shape)

    def _remember(self, key: str, kind: Kind, tensor: HostTensor) -> None:
        saved = self.policy.saved(kind, "memory")
        if saved > 0:
            # While times are unknown, by the sizes that most models have: embeddings save about 30 times as much.
            unknown = 1e-6 if kind == "embeddings" else 3e-8
            self._memory.put(_name(key, kind), tensor, saved if saved < math.inf else unknown)


def _name(key: str, kind: Kind) -> str:
    return f"{kind} {key}"

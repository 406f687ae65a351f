"""The tier in host memory: the most recently used embeddings of images, up to a number of bytes."""

import threading
from collections import OrderedDict

from photonlite.sequence import StoredImage


class MemoryTier:
    """Embeddings by key, the least recently used of which go first; all methods may be called from any thread."""

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self.evictions = 0
        self._limit = limit
        self._images: OrderedDict[str, StoredImage] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, key: str) -> StoredImage | None:
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
            return self._images.get(key)

    def put(self, key: str, image: StoredImage) -> None:
        """Keep an image, unless it is larger than the tier; its memory may no longer change."""
        size = image.data.nbytes
        if size > self._limit:
            return
        with self._lock:
            if (old := self._images.pop(key, None)) is not None:
                self.bytes -= old.data.nbytes
            self._images[key] = image
            self.bytes += size
            while self.bytes > self._limit:
                _, oldest = self._images.popitem(last=False)
                self.bytes -= oldest.data.nbytes
                self.evictions += 1

    def clear(self) -> None:
        with self._lock:
            self._images.clear()
            self.bytes = 0

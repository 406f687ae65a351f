"""The store: embeddings of images behind the prefix cache, so that a later question does not encode them again.

```
prefix cache (device) ── evicted ──> host memory ──> disk, shared by processes
                                       └── a later question about the same image takes what is nearest
```

Embeddings are written to all tiers when they are made, and read from the first that has them. Within a process they are
known by their image's key, which holds pixels and cache salt.
"""

from photonlite.cache.store.memory import MemoryTier
from photonlite.sequence import StoredImage


class ImageStore:
    """Embeddings in host memory, at most `memory_bytes`; all methods may be called from any thread."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory = MemoryTier(memory_bytes)

    @property
    def gauges(self) -> dict[str, float]:
        return {"stored_images": len(self._memory), "stored_bytes": self._memory.bytes}

    def find(self, key: str) -> StoredImage | None:
        """Return an image's embeddings if they are in host memory; does not wait."""
        return self._memory.get(key)

    def expects(self, key: str, cache_salt: str) -> bool:
        """Whether `load` is likely to find an image's embeddings; does not read them."""
        return False

    def load(self, key: str, cache_salt: str) -> StoredImage | None:
        """Return an image's embeddings from the nearest tier that has them; may read a disk."""
        return self.find(key)

    def keep(self, key: str, cache_salt: str, image: StoredImage) -> None:
        """Keep the embeddings of an image that was encoded; does not wait for a disk."""
        self._memory.put(key, image)

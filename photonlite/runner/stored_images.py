"""What was computed for images and outlives their requests: kept when it is made, and copied back later.

```
first question    crops ── upload ─> encode ─> embeddings ─> prefill of image and words ─> keys and values
                                                  └─────────── ImageKeeper ─────────────────────┴──> a store
a later one       StoredImage ── upload ────> embeddings ─> prefill of image and words
                              └─ upload ────────────────────────────────────> pages ─> prefill of the words
```

Embeddings are all outputs of an encoder: those of the input, and those that are added behind later layers. Keys and
values are those of all positions up to the image's end, which do not depend on what follows; see `PrefixPages`.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from photonlite.batch import BatchItem, CropGroup, EncodeJob
from photonlite.device.base import Array
from photonlite.image_inputs import HostTensor, StoredImage
from photonlite.models.adapters.layers import AdapterBank
from photonlite.runner.buffers import CropBuffers, PagedCache, transfer, transfer_back
from photonlite.runner.images import Images

_logger = logging.getLogger("photonlite")

_PENDING_BYTES = 64 * 2**20
"""Limit of device copies that wait for their transfer to the host (a single larger one is allowed); part of
`memory.WORKSPACE_BYTES`."""

_MOST_BYTES = 256 * 2**20
"""Most bytes of pages that are copied at once: half of `memory.WORKSPACE_BYTES`, 2,000 positions of a model of 2B."""

Kind = Literal["embeddings", "pages"]


class Store(Protocol):
    """Takes what was computed for images, from any thread; `units` are crops, or positions of pages."""

    def wants(self, image: str, kind: Kind, units: int, size: int) -> bool:
        """Whether so many bytes that were computed for an image are worth a copy to the host."""

    def allocate(self, size: int) -> Array | None:
        """Return memory for a copy; None where there is none."""

    def keep(self, key: str, cache_salt: str, kind: Kind, tensor: HostTensor, units: int) -> None:
        """Keep numbers of an image; their memory is the store's."""


class StoredImages:
    """Images of encode launches, some of them stored; see `runner.images.Images`. The others are left to `inner`."""

    def __init__(self, inner: Images, device: torch.device, keeper: "ImageKeeper | None" = None) -> None:
        self.inner = inner
        self.input_shape = inner.input_shape
        self._device = device
        self._keeper = keeper
        self._restored: dict[int, tuple[Tensor, Tensor | None]] = {}  # embeddings, keys and values

    def upload(self, buffers: CropBuffers, groups: Sequence[CropGroup]) -> None:
        for group in groups:
            if isinstance(stored := group.job.crops, StoredImage):
                pages = None if group.job.pages is None else _to_device(group.job.pages.numbers, self._device)
                self._restored[group.job.number] = _to_device(stored.embeddings, self._device), pages
        if fresh := _fresh(groups):
            self.inner.upload(buffers, fresh)

    def encode(self, buffers: CropBuffers, groups: Sequence[CropGroup], bank: AdapterBank | None = None) -> None:
        for group in groups:
            if group.job.failed:
                self._restored.pop(group.job.number, None)
            for restored in self._restored.get(group.job.number, ()):
                if restored is not None:
                    _use_on_current_stream(restored)
        if not (fresh := _fresh(groups)):
            return
        self.inner.encode(buffers, fresh, bank)
        for group in fresh:
            job, found = group.job, self.inner.embeddings(group.job.number)
            if self._keeper is None or found is None:
                continue
            if self._keeper.wants(job.key, "embeddings", job.total, found.nbytes):
                self._keeper.keep(job.key, job.leader.cache_salt, "embeddings", found, job.total)

    def work(self, groups: Sequence[CropGroup]) -> int:
        return self.inner.work(_fresh(groups))

    def embeddings(self, job: int) -> Tensor | None:
        return self._restored[job][0] if job in self._restored else self.inner.embeddings(job)

    def restore_pages(self, cache: PagedCache, table: Tensor, rows: Sequence[BatchItem]) -> None:
        """Write stored keys and values of prompts to their pages, int32 ``[B, P]``."""
        for index, row in enumerate(rows):
            for job, place, first in row.restored:
                pages, stored = table[index, first : place.stop].long(), self.take_pages(job.number)
                if stored is None:
                    cache.spoil(pages)  # what is missing fails this row only
                else:
                    cache.put(pages, stored[:, :, first - place.first :])

    def keep_pages(self, cache: PagedCache, table: Tensor, rows: Sequence[BatchItem]) -> None:
        """Have pages kept that end with an image and that prompts have filled, if that is worth it."""
        if self._keeper is not None:
            for index, row in enumerate(rows):
                if row.sequence.note_filled(row.start, row.start + row.count):
                    self._keep_pages(self._keeper, cache, table[index], row)

    def take_pages(self, job: int) -> Tensor | None:
        """Return stored keys and values that came with an image, and forget them; None where there are none."""
        embeddings, pages = self._restored.get(job, (None, None))
        if embeddings is None or pages is None:
            return None
        self._restored[job] = embeddings, None
        _use_on_current_stream(pages)
        return pages

    def forget(self, job: EncodeJob) -> None:
        self._restored.pop(job.number, None)
        self.inner.forget(job)

    def encode_most(self, buffers: CropBuffers, images: int) -> list[Tensor]:
        return self.inner.encode_most(buffers, images)

    def _keep_pages(self, keeper: "ImageKeeper", cache: PagedCache, table: Tensor, row: BatchItem) -> None:
        jobs = {job.key: job for job in row.jobs}
        for span in row.sequence.images:
            job, place = jobs.get(span.key), span.pages
            if job is None or place is None or not row.start < place.end <= row.start + row.count:
                continue
            if job.failed or self.embeddings(job.number) is None:
                return
            positions, pages = place.end - place.start, place.stop - place.first
            if keeper.wants(span.key, "pages", positions, pages * cache.page_bytes):
                taken = cache.take(table[place.first : place.stop].long())
                keeper.keep(place.key, row.sequence.cache_salt, "pages", taken, positions)


class ImageKeeper:
    """Copies what was computed for images to the host, without holding up the device or the thread that calls it.

    ```
    compute     encode ─● made ─ ...
    own stream          └ sum ─ copy to memory of the store ─● done
    thread                                                   └ store
    ```

    The engine's thread launches the copy: another one would take the interpreter from it for each operation, which
    takes several times as long. On the CPU there is nothing to wait for: it is copied at once. While much is being
    copied, more is not kept. What goes wrong is logged: no request depends on it.
    """

    def __init__(self, device: torch.device, store: Store) -> None:
        self.store = store
        self._device = device
        self._pending = 0
        self._lock = threading.Lock()
        self._stream: Any = None
        self._thread: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="photonlite-keeper")

    def wants(self, image: str, kind: Kind, units: int, size: int) -> bool:
        """Whether what was computed for an image is worth a copy to the host, and there is room until it is made."""
        with self._lock:
            room = not self._pending or self._pending + size <= _PENDING_BYTES
        return room and (kind != "pages" or size <= _MOST_BYTES) and self.store.wants(image, kind, units, size)

    def keep(self, key: str, cache_salt: str, kind: Kind, tensor: Tensor, units: int) -> None:
        """Keep numbers of an image that no later work changes; called on the stream that made them, and never raises.

        Those of pages are a copy already, see `PagedCache.take`.
        """
        try:
            place = key, cache_salt, kind
            if self._thread is None:
                if bool(_sum(tensor).isfinite()):
                    own = tensor if kind == "pages" else tensor.clone(memory_format=torch.contiguous_format)
                    self.store.keep(*place, _on_host(tensor, own.view(torch.uint8).view(-1).numpy()), units)
            elif (host := self.store.allocate(_room_with_sum(tensor.nbytes))) is not None:
                made, done = (torch.cuda.Event(blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
                made.record(torch.cuda.current_stream(self._device))
                with torch.cuda.stream(self._stream):
                    self._stream.wait_event(made)
                    total = _sum(tensor).view(1).view(torch.uint8)
                    transfer_back(host[: tensor.nbytes], tensor.contiguous().view(torch.uint8).view(-1))
                    transfer_back(host[len(host) - len(total) :], total)
                    done.record(self._stream)
                with self._lock:
                    self._pending += tensor.nbytes
                self._thread.submit(self._finish, place, tensor, host, len(total), done, units)
        except Exception:  # such as memory that is short, or a thread pool that ends with the program
            _logger.warning("what was computed for an image is not kept", exc_info=True)

    def close(self) -> None:
        """Finish what is being copied."""
        if self._thread is not None:
            self._thread.shutdown()

    def _finish(
        self, place: tuple[str, str, Kind], tensor: Tensor, host: Array, last: int, done: torch.cuda.Event, units: int
    ) -> None:
        """Hand over what is copied, if its sum, the `last` bytes, is finite; the device's memory is free only then."""
        try:
            done.synchronize()
            if np.isfinite(host[-last:].view(f"f{last}"))[0]:
                self.store.keep(*place, _on_host(tensor, host[: tensor.nbytes]), units)
        except Exception:  # as above
            _logger.warning("what was computed for an image is not kept", exc_info=True)
        finally:
            with self._lock:
                self._pending -= tensor.nbytes


def _sum(tensor: Tensor) -> Tensor:
    """Return the sum of numbers, finite if all of them are: what went wrong once must not be answered with for ever."""
    wide = tensor.half() if tensor.element_size() == 1 else tensor  # there are no sums of FP8
    return wide.sum(dtype=torch.promote_types(wide.dtype, torch.float32))


def _room_with_sum(size: int) -> int:
    return -(-size // 8) * 8 + 8


def measure_bus(device: torch.device, size: int) -> float:
    """Return the seconds that so many bytes take from host memory to the device."""
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda").numpy()
    target = torch.zeros(size, dtype=torch.uint8, device=device)
    begun = 0.0
    for _ in range(2):  # the first copy pays for what is only done once
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        transfer(target, source)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _use_on_current_stream(tensor: Tensor) -> None:
    """Delay the reuse of a tensor's memory by the stream that allocated it until this one is done with it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _fresh(groups: Sequence[CropGroup]) -> list[CropGroup]:
    return [group for group in groups if not group.job.is_stored]


def _on_host(tensor: Tensor, host: Array) -> HostTensor:
    return HostTensor(host, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _to_device(stored: HostTensor, device: torch.device) -> Tensor:
    """Return stored numbers as a tensor; on the CPU it shares their memory, which is only read."""
    if device.type == "cpu":
        data = torch.from_numpy(stored.data)
    else:
        data = torch.empty(stored.data.shape, dtype=torch.uint8, device=device)
        transfer(data, stored.data)
    return data.view(getattr(torch, stored.dtype)).view(stored.shape)

"""Host memory for the pages of sequences that gave way, and the way there and back.

```
out   pages ── gather kernel ──> staging ── copy ──> page-locked memory      chunk by chunk, on the swap stream
in    page-locked memory ── copy ──> staging ── scatter kernel ──> pages
```

Pages lie scattered and layer by layer in the cache; together in the staging buffer, so that what crosses the bus is a
few large copies. On the CPU pages are copied directly.
"""

import os
import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from photonlite.batch import Transfer
from photonlite.errors import CapacityError
from photonlite.kernels.columns import PENDING_COLUMNS
from photonlite.kernels.swap import gather_pages, scatter_pages
from photonlite.runner.buffers import PagedCache

STAGING_BYTES = 64 * 2**20
"""Size of the staging buffer, or one page if that is more: large enough that copies reach the bandwidth of the bus."""


def swap_places(swap_bytes: int, page_bytes: int, longest: int, physical: int | None = None) -> int:
    """Return how many pages fit into host memory of that size, none for 0; CapacityError where that makes no sense.

    `longest` is the pages of the longest request.
    """
    if swap_bytes == 0:
        return 0
    if physical is None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if swap_bytes > physical:
        raise CapacityError(
            f"swap_bytes is {swap_bytes}, {swap_bytes / 2**30:.2f} GiB, but the machine has {physical / 2**30:.2f} GiB "
            f"of memory: lower it, to at most {physical}"
        )
    if swap_bytes < longest * page_bytes:
        raise CapacityError(
            f"swap_bytes is {swap_bytes}, room for {swap_bytes // page_bytes} pages of {page_bytes} bytes, but the "
            f"longest request has {longest} pages: set it to {longest * page_bytes} or more, or to 0 for no swapping"
        )
    return swap_bytes // page_bytes


def staging_pages(page_bytes: int) -> int:
    return max(1, STAGING_BYTES // page_bytes)


class HostPages:
    """Page-locked memory for `places` pages, numbered from 1, and for a row of the pending table with each.

    The constructor raises a CapacityError where the memory cannot be had. Copies run on the current stream, through a
    staging buffer of `staged` pages; 0 copies page by page, which is the default on the CPU.
    """

    def __init__(self, cache: PagedCache, pending: Tensor, places: int, staged: int | None = None) -> None:
        self._keys, self._values = _words(cache.keys), _words(cache.values)
        self._pending = pending
        layers, pages, words = self._keys.shape
        device, kind = self._keys.device, self._keys.dtype
        size, pinned = (places, 2, layers, words), device.type == "cuda"
        if staged is None:
            staged = min(places, staging_pages(2 * layers * words * kind.itemsize)) if pinned else 0
        self._staged = staged
        try:
            self._memory = torch.empty(size, dtype=kind)
            if pinned:
                lock_pages(self._memory, self)
            self._rows = torch.empty((places, PENDING_COLUMNS), dtype=torch.int32, pin_memory=pinned)
        except RuntimeError as cause:
            wanted = places * 2 * layers * words * kind.itemsize
            error = CapacityError(
                f"{wanted / 2**30:.2f} GiB of host memory for swapping cannot be had: lower swap_bytes"
            )
            raise error from cause
        self._staging = torch.empty((staged, 2, layers, words), dtype=kind, device=device)
        self._index = torch.empty(staged, dtype=torch.int64, device=device)
        # A page is in one transfer at a time, so that the ring never overtakes copies that have not run.
        self._ring = torch.empty(pages + 2 * staged, dtype=torch.int64, pin_memory=pinned)
        self._next = 0

    def move(self, transfer: Transfer) -> None:
        """Copy the pages of a transfer, and its row of the pending table, to host memory or back."""
        places = [place - 1 for place in transfer.places]
        rows, pending = self._rows[transfer.first - 1], self._pending[transfer.row]
        if transfer.direction == "out":
            rows.copy_(pending, non_blocking=True)
            self._move_out(transfer.pages, places)
        else:
            pending.copy_(rows, non_blocking=True)
            self._move_in(transfer.pages, places)

    def _move_out(self, pages: Sequence[int], places: Sequence[int]) -> None:
        if not self._staged:
            for page, place in zip(pages, places, strict=True):
                self._memory[place, 0] = self._keys[:, page]
                self._memory[place, 1] = self._values[:, page]
            return
        for chunk, targets in self._chunks(pages, places):
            index = self._upload(chunk)
            gather_pages(self._keys, self._values, index, self._staging[: len(chunk)])
            for first, stop, place in _runs(targets):
                self._memory[place : place + stop - first].copy_(self._staging[first:stop], non_blocking=True)

    def _move_in(self, pages: Sequence[int], places: Sequence[int]) -> None:
        if not self._staged:
            for page, place in zip(pages, places, strict=True):
                self._keys[:, page] = self._memory[place, 0]
                self._values[:, page] = self._memory[place, 1]
            return
        for chunk, sources in self._chunks(pages, places):
            for first, stop, place in _runs(sources):
                self._staging[first:stop].copy_(self._memory[place : place + stop - first], non_blocking=True)
            scatter_pages(self._staging[: len(chunk)], self._upload(chunk), self._keys, self._values)

    def _chunks(self, pages: Sequence[int], places: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        for begin in range(0, len(pages), self._staged):
            yield pages[begin : begin + self._staged], places[begin : begin + self._staged]

    def _upload(self, pages: Sequence[int]) -> Tensor:
        """Copy page numbers to the device without waiting."""
        if self._next + len(pages) > len(self._ring):
            self._next = 0
        source = self._ring[self._next : self._next + len(pages)]
        source.copy_(torch.tensor(pages))
        self._next += len(pages)
        index = self._index[: len(pages)]
        index.copy_(source, non_blocking=True)
        return index


def lock_pages(tensor: Tensor, owner: object) -> None:
    """Page-lock a tensor's memory until its owner, which keeps it, is gone; raises a RuntimeError.

    PyTorch's own allocator of page-locked memory rounds sizes up to powers of two.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if code := int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)):
        raise RuntimeError(f"cudaHostRegister has returned error {code}")
    weakref.finalize(owner, runtime.cudaHostUnregister, tensor.data_ptr()).atexit = False


def _words(cache: Tensor) -> Tensor:
    """Return keys or values as words, ``[layers, pages, W]``: int32 where a page has whole ones, else bytes."""
    stored = cache.transpose(2, 3).flatten(2)  # as it lies in memory, see `PagedCache`
    whole = stored.shape[2] * stored.element_size() % 4 == 0
    return stored.view(torch.int32 if whole else torch.uint8)


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut places into runs of consecutive ones: first and last index, the last one excluded, and first place."""
    cuts = [at + 1 for at, (one, other) in enumerate(pairwise(places)) if other != one + 1]
    for first, stop in pairwise([0, *cuts, len(places)]):
        yield first, stop, places[first]

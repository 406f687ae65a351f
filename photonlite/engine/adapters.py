"""Adapters in host memory, on disk, and on their way to the device.

```
load_adapter ──> AdapterStore: name ─> HostAdapter ─ weights (least recently used leave memory, and are read again)
request ───────> holds its HostAdapter, whatever happens to the name
plan ──────────> AdapterLoader: a thread writes the weights to a slot, then tells the engine
```
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from photonlite.device.cpu import in_passing
from photonlite.engine.faults import without_frames
from photonlite.errors import AdapterError, OutOfMemoryError, PhotonliteError
from photonlite.models.adapters.files import AdapterFiles, read_adapter
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterWeights
from photonlite.models.families import Family
from photonlite.scheduler.adapters import AdapterLoad

_MOST_BYTES = 2**30
"""Largest adapter file, unless `AdapterStore` may hold more: a whole checkpoint is refused before it is read."""


@dataclass(frozen=True)
class AdapterReader:
    """Reads adapters for one model; see `models.adapters.files.read_adapter`."""

    model: nn.Module
    family: Family
    dtype: torch.dtype
    rank: int

    def __call__(self, files: AdapterFiles) -> AdapterWeights:
        """Read an adapter; for a card into page-locked memory, from which copies need no staging."""
        weights = read_adapter(files, self.model, self.family, dtype=self.dtype, rank=self.rank)
        return weights.pinned() if next(self.model.parameters()).is_cuda else weights


class HostAdapter:
    """An adapter that was loaded: a `photonlite.request.AdapterRef`."""

    def __init__(self, name: str, files: AdapterFiles, weights: AdapterWeights) -> None:
        self.name, self.files = name, files
        self.key, self.rank, self.nbytes = weights.key, weights.rank, weights.nbytes
        self.weights: AdapterWeights | None = weights  # None: on disk; belongs to the store


class AdapterStore:
    """Loaded adapters by name; from any thread. Beyond `limit` bytes the least recently used stay on disk alone."""

    def __init__(self, read: AdapterReader, limit: int) -> None:
        self._read, self._limit = read, limit
        self._lock = threading.Lock()
        self._named: dict[str, HostAdapter] = {}
        self._in_memory: OrderedDict[HostAdapter, None] = OrderedDict()

    @property
    def named(self) -> dict[str, HostAdapter]:
        """Adapters by name, in the order in which they were loaded."""
        with self._lock:
            return dict(self._named)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(adapter.nbytes for adapter in self._in_memory)

    def load(
        self, name: str, files: AdapterFiles, reserve: Callable[[AdapterWeights], None] = lambda weights: None
    ) -> HostAdapter:
        """Read an adapter; AdapterError if it cannot be used, or if another one has the name.

        `reserve` is called before requests can find it. One with the same content under the same name is returned as it
        is.
        """
        self._check_size(files)
        weights = self._read(files)
        reserve(weights)
        with self._lock:
            known = self._named.get(name)
            if known is not None and known.key != weights.key:
                raise AdapterError(
                    f"an adapter {name!r} is loaded already, from {known.files.source!r:.200}, with other content: "
                    "unload it first, or load this one under another name"
                )
            if known is None:
                known = self._named[name] = HostAdapter(name, files, weights)
            known.files = files
            self._keep(known, weights)
            return known

    def unload(self, name: str) -> HostAdapter | None:
        """Forget a name; None where it is not known. Requests that have its adapter are answered with it."""
        with self._lock:
            adapter = self._named.pop(name, None)
            if adapter is not None:
                self._in_memory.pop(adapter, None)  # those that hold the adapter hold its weights
            return adapter

    def weights_of(self, adapter: HostAdapter) -> AdapterWeights:
        """Return an adapter's weights, read again where they left memory; AdapterError if files have changed.

        Adapters of equal content share a slot of the device, so that any of them may stand for the others.
        """
        with self._lock:
            equal = dict.fromkeys((adapter, *(one for one in self._named.values() if one.key == adapter.key)))
            for one in equal:
                if one.weights is not None:
                    if one in self._in_memory:
                        self._in_memory.move_to_end(one)
                    return one.weights
        errors: list[AdapterError] = []
        for one in equal:
            try:
                return self._read_again(one)
            except AdapterError as error:
                errors.append(error)
        raise errors[0]

    def _read_again(self, adapter: HostAdapter) -> AdapterWeights:
        weights = self._read(adapter.files)
        if weights.key != adapter.key:
            raise AdapterError(
                f"the files of adapter {adapter.name!r}, {adapter.files.source!r:.200}, have changed since it was "
                "loaded: unload it, and load it again"
            )
        with self._lock:
            if self._named.get(adapter.name) is adapter:
                self._keep(adapter, weights)
        return weights

    def _check_size(self, files: AdapterFiles) -> None:
        """Raise an AdapterError for files that host memory is not meant to hold; what cannot be read is told later."""
        with suppress(OSError):
            if (size := files.weights.stat().st_size) > (most := max(self._limit, _MOST_BYTES)):
                raise AdapterError(
                    f"the adapter {files.source!r:.200} is a file of {size} bytes, over the limit of {most}: raise the "
                    "engine setting 'adapter_bytes', or name a smaller adapter"
                )

    def _keep(self, adapter: HostAdapter, weights: AdapterWeights) -> None:
        """Keep weights in memory, in the place of those that were not used for longest; the last ones always stay."""
        adapter.weights = weights
        self._in_memory[adapter] = None
        self._in_memory.move_to_end(adapter)
        while len(self._in_memory) > 1 and sum(one.nbytes for one in self._in_memory) > self._limit:
            oldest, _ = self._in_memory.popitem(last=False)
            oldest.weights = None


class AdapterLoader:
    """Writes adapters to slots of the device on a thread of its own, while the engine's runs other requests."""

    def __init__(
        self,
        bank: AdapterBank,
        store: AdapterStore,
        device: torch.device,
        tell: Callable[[AdapterLoad, BaseException | None], None],
    ) -> None:
        self._bank, self._store, self._device, self._tell = bank, store, device, tell
        self._thread = ThreadPoolExecutor(1, "photonlite-adapters")
        try:
            self._thread.submit(lambda: None)  # starts it, so that what fails is told to the caller
        except RuntimeError as cause:  # the interpreter exits, or no thread can be started
            raise AdapterError(f"adapters cannot be loaded: {cause}") from cause

    def begin(self, load: AdapterLoad) -> None:
        """Begin to load, and return at once; `tell` is called at the end, on this loader's thread."""
        try:
            self._thread.submit(partial(self._load, load))
        except RuntimeError as cause:  # the interpreter exits
            self._tell(load, AdapterError(f"adapter {load.adapter.name!r} cannot be loaded: {cause}"))

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _load(self, load: AdapterLoad) -> None:
        error: BaseException | None = None
        adapter = load.adapter
        try:
            if not isinstance(adapter, HostAdapter):
                raise AssertionError(f"adapter {adapter.name!r} does not come from this engine's store")
            in_passing(lambda: self._write(load.slot, self._store.weights_of(adapter)))
        except PhotonliteError as cause:
            error = cause
        except (MemoryError, torch.OutOfMemoryError) as cause:
            error = OutOfMemoryError(f"there is no memory left for adapter {adapter.name!r}; it may fit later")
            error.__cause__ = without_frames(cause)
        except Exception as cause:
            error = AdapterError(f"adapter {adapter.name!r} could not be brought to the device: {cause}")
            error.__cause__ = without_frames(cause)
        self._tell(load, error)

    def _write(self, slot: int, weights: AdapterWeights) -> None:
        """Write a slot that no launch reads; on a card on a stream of its own, for which this thread alone waits."""
        if self._device.type != "cuda":
            self._bank.write(slot, weights)
            return
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                self._bank.write(slot, weights)
            stream.synchronize()

"""Embeddings of images that outlive their request: kept when they are made, and copied back in place of an encoding.

```
first question    crops ── upload ─> encode ─> embeddings ─> prefill
                                                  └ ImageKeeper: copied to the host beside all other work ──> a store
a later one       StoredImage ── upload ────> embeddings ─> prefill
```

Embeddings are all that an encoder gives: those of the input, and those that later layers add.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.runner.buffers import Buffers, transfer
from photonlite.runner.images import Images
from photonlite.sequence import StoredImage

_logger = logging.getLogger("photonlite")

_PENDING_BYTES = 64 * 2**20
"""Embeddings on the device whose prompts may have run, while they are copied; part of `memory.WORKSPACE_BYTES`."""

HandOn = Callable[[str, str, StoredImage], None]
"""Takes an image's key, its cache salt, and its embeddings, whose memory is the taker's."""

Keep = Callable[[EncodeJob, Tensor], None]
"""Is given the embeddings of each image that was encoded, on the compute stream; does not wait for the device."""


class StoredImages:
    """Images of encode launches, some of them stored; see `runner.images.Images`. The others are left to `inner`."""

    def __init__(self, inner: Images, device: torch.device, keep: Keep | None = None) -> None:
        self.inner = inner
        self.input_shape = inner.input_shape
        self._device = device
        self._keep = keep
        self._restored: dict[int, Tensor] = {}

    def upload(self, buffers: Buffers, groups: Sequence[CropGroup]) -> None:
        for group in groups:
            if isinstance(group.job.crops, StoredImage):
                self._restored[group.job.number] = _to_device(group.job.crops, self._device)
        if fresh := _fresh(groups):
            self.inner.upload(buffers, fresh)

    def encode(self, buffers: Buffers, groups: Sequence[CropGroup]) -> None:
        for group in groups:
            if group.job.failed:
                self._restored.pop(group.job.number, None)
            elif self._device.type == "cuda" and (restored := self._restored.get(group.job.number)) is not None:
                # Allocated on the upload stream, which may use its memory again once it is free.
                restored.record_stream(torch.cuda.current_stream(self._device))
        if not (fresh := _fresh(groups)):
            return
        self.inner.encode(buffers, fresh)
        keep = self._keep
        for group in fresh:
            if keep is not None and (found := self.inner.embeddings(group.job.number)) is not None:
                keep(group.job, found)

    def work(self, groups: Sequence[CropGroup]) -> int:
        return self.inner.work(_fresh(groups))

    def embeddings(self, job: int) -> Tensor | None:
        found = self._restored.get(job)
        return self.inner.embeddings(job) if found is None else found

    def forget(self, job: EncodeJob) -> None:
        self._restored.pop(job.number, None)
        self.inner.forget(job)

    def encode_most(self, buffers: Buffers, images: int) -> list[Tensor]:
        return self.inner.encode_most(buffers, images)


class ImageKeeper:
    """Copies embeddings to the host and hands them on, without holding up the device or the thread that calls it.

    ```
    compute   encode ─● encoded ─ prefill ...
    thread            └ page-locked memory ─ copy, on a stream of its own ─ hand_on
    ```

    On the CPU there is nothing to wait for: embeddings are copied at once. While much is being copied, more is not
    kept. What goes wrong is logged: no request depends on it.
    """

    def __init__(self, device: torch.device, hand_on: HandOn) -> None:
        self._device = device
        self._hand_on = hand_on
        self._pending = 0
        self._lock = threading.Lock()
        self._stream: Any = None
        self._thread: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="photonlite-keeper")

    def keep(self, job: EncodeJob, embeddings: Tensor) -> None:
        """Keep the embeddings of an encoded image; called on the compute stream, and never raises."""
        key, salt = job.key, job.leader.cache_salt
        try:
            if self._thread is None:
                self._hand_on(key, salt, _stored(embeddings, embeddings.contiguous().view(torch.uint8).clone()))
                return
            with self._lock:
                if self._pending + embeddings.nbytes > _PENDING_BYTES:
                    return
                self._pending += embeddings.nbytes
            encoded = torch.cuda.Event()  # type: ignore[no-untyped-call]
            encoded.record(torch.cuda.current_stream(self._device))
            self._thread.submit(self._copy, key, salt, embeddings, encoded)
        except Exception:  # such as memory that is short, or a thread pool that ends with the program
            _logger.warning("the embeddings of an image are not kept", exc_info=True)

    def close(self) -> None:
        """Finish what is being copied."""
        if self._thread is not None:
            self._thread.shutdown()

    def _copy(self, key: str, salt: str, embeddings: Tensor, encoded: torch.cuda.Event) -> None:
        try:
            with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                self._stream.wait_event(encoded)
                source = embeddings.contiguous().view(torch.uint8)
                host = torch.empty(source.shape, dtype=torch.uint8, pin_memory=True)
                host.copy_(source, non_blocking=True)
                # The device's memory may be used again by the compute stream only after this.
                self._stream.synchronize()
            self._hand_on(key, salt, _stored(embeddings, host))
        except Exception:  # as above
            _logger.warning("the embeddings of an image are not kept", exc_info=True)
        finally:
            with self._lock:
                self._pending -= embeddings.nbytes


def _fresh(groups: Sequence[CropGroup]) -> list[CropGroup]:
    return [group for group in groups if not group.job.is_stored]


def _stored(embeddings: Tensor, host: Tensor) -> StoredImage:
    # The array keeps the tensor's memory.
    return StoredImage(host.view(-1).numpy(), tuple(embeddings.shape), str(embeddings.dtype).removeprefix("torch."))


def _to_device(image: StoredImage, device: torch.device) -> Tensor:
    """Return stored embeddings as a tensor; on the CPU it shares their memory, which is only read."""
    if device.type == "cpu":
        data = torch.from_numpy(image.data)
    else:
        data = torch.empty(image.data.shape, dtype=torch.uint8, device=device)
        transfer(data, image.data)
    return data.view(getattr(torch, image.dtype)).view(image.shape)

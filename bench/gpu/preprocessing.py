"""Decoded images until their crops are on the device, as the engine prepares them, and whether Pillow agrees."""

import threading
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from bench.gpu.clock import Clock
from photonlite.batch import CropGroup, EncodeJob
from photonlite.config import ImageLimits
from photonlite.image_inputs import read_crops
from photonlite.images.crops import CropSpec, select_tiling
from photonlite.images.packing import MOST_BYTES
from photonlite.images.pool import ImagePool
from photonlite.runner.buffers import CropBuffers
from photonlite.runner.images import ImageEncoder
from photonlite.runner.slots import SlotShape

_SMALLEST = SlotShape(1, 1, 1, 1, 1, 1)
_PATIENCE_S = 60.0
_NO_ENCODER: Any = None  # crops are made, not encoded


class Preprocessing:
    """The engine's own path of an image: checked, named by its content, packed or cut, copied, and resized.

    Args:
        clock: Of the device.
        spec: How images are cut.
        threads: That prepare images.
    """

    def __init__(self, clock: Clock, spec: CropSpec, threads: int = 4) -> None:
        device, cuda = clock.device, clock.device.type == "cuda"
        self._clock = clock
        self._spec = spec
        self._ready = threading.Event()
        self._pool = ImagePool(spec, ImageLimits(), threads, buffer=self._memory, packs=cuda, on_ready=self._ready.set)
        # More crops than any image has, those of long strips aside.
        most = 2 * (1 + spec.max_crops)
        with torch.inference_mode():
            size = most, spec.crop_size, spec.crop_size, 3
            self._buffers = CropBuffers(size, device, image_bytes=MOST_BYTES if cuda else 0)
            self._images = ImageEncoder(_NO_ENCODER, spec)

    @torch.inference_mode()
    def crops(self, image: Image.Image) -> torch.Tensor:
        """Return the crops of a decoded image, uint8 ``[n, C, C, 3]``, on the device, where they may still be computed.

        Raises:
            RuntimeError: They could not be cut.
        """
        self._ready.clear()
        prepared = self._pool.prepare(image)
        if prepared.crops is None:
            prepared.request_crops()
            if not self._ready.wait(_PATIENCE_S) or prepared.crops is None:
                raise RuntimeError(f"an image of {image.size} was not cut: {prepared.failure!r}")
        leader: Any = None
        job = EncodeJob(0, prepared.key, read_crops(prepared.crops), leader)
        groups = (CropGroup(job, 0, job.total),)
        self._images.upload(self._buffers, groups)
        return self._images.cut(self._buffers, groups)

    def equal(self, image: Image.Image) -> bool:
        """Return whether the crops on the device equal those of Pillow's resize, bit for bit."""
        return bool(np.array_equal(self.crops(image).cpu().numpy(), pillow_crops(image, self._spec)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.synchronize()
        self._pool.close()

    def _memory(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        pinned = self._clock.device.type == "cuda"
        memory: npt.NDArray[np.uint8] = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned).numpy()
        return memory


def pillow_crops(image: Image.Image, spec: CropSpec) -> npt.NDArray[np.uint8]:
    """Cut an RGB image with `Image.resize` and slices alone, uint8 ``[n, C, C, 3]``."""
    size, window = spec.crop_size, spec.window
    rows, columns = select_tiling(image.height, image.width, spec)
    crops = [np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))]
    if (rows, columns) != (1, 1):
        sheet_size = columns * window + 2 * spec.margin, rows * window + 2 * spec.margin
        sheet = np.asarray(image.resize(sheet_size, Image.Resampling.LANCZOS))
        for top, left in np.ndindex(rows, columns):
            crops.append(sheet[top * window :, left * window :][:size, :size])
    return np.stack(crops)


def upload_bandwidth(clock: Clock, size: int = 1 << 26) -> float:
    """Measure copies from page-locked memory to the device, in bytes per second."""
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=clock.device.type == "cuda")
    target = torch.empty(size, dtype=torch.uint8, device=clock.device)
    return size / clock.measure(lambda: target.copy_(source, non_blocking=True)).low

"""CUDA graphs of the image encoder: captured at start for each number of crops, replayed with one call.

```
crops [n, C, C, 3] ── copy ──> pixels ── graph of n crops ──> features ── copy ──> the caller's, to keep
                              (fixed)                        (fixed)
```

The kernels of a block take less time than it takes to launch them when crops are few. For each number of crops every
attention backend is captured and the quickest is kept: which one that is depends on the shape.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from photonlite.kernels.autotune import BACKENDS, fastest, only_backend
from photonlite.models.base import CropEncoder
from photonlite.runner.graphs import Capturer, GraphReport, frozen_garbage

Chooser = Callable[[Sequence[Callable[[], None]]], int]
"""Gives the index of the quickest."""

_logger = logging.getLogger("photonlite")


class GraphedEncoder:
    """An image encoder whose first stage runs as a graph; see `models.base.CropEncoder`.

    Its methods are called in inference mode.

    Args:
        encoder: Runs eagerly.
        crop_size: Pixels along a side of a crop.
        max_crops: Crops of a launch at most.
        device: A card, where the encoder is.
    """

    def __init__(self, encoder: CropEncoder, *, crop_size: int, max_crops: int, device: torch.device) -> None:
        self._encoder = encoder
        self._pixels = torch.zeros(max_crops, crop_size, crop_size, 3, dtype=torch.uint8, device=device)
        self._features = torch.empty(0, device=device)
        self._replays: dict[int, Callable[[], None]] = {}

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode crops, uint8 ``[n, C, C, 3]``; the features ``[n, P, D]`` are the caller's.

        What was not captured runs eagerly, with whatever attention the caller allows.
        """
        count = len(pixels)
        replay = self._replays.get(count)
        if replay is None:
            return self._encoder.encode(pixels)
        self._pixels[:count].copy_(pixels)
        replay()
        return self._features[:count].clone()  # the next replay writes over them

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map features to embeddings, eagerly: it is a handful of kernels."""
        return self._encoder.project(features, tiling)

    def capture(self, capturer: Capturer, choose: Chooser = fastest) -> GraphReport:
        """Capture every number of crops, largest first, and warm up the projection.

        Args:
            capturer: Makes the graphs. It may make others from the same memory pool later on, if all are replayed one
                after the other.
            choose: Gives the index of the quickest of some graphs.
        """
        begun, before = time.perf_counter(), capturer.used_bytes()
        with torch.inference_mode(), frozen_garbage():
            self._pixels.random_(0, 256)  # what a card takes for a product depends on the numbers, a little
            largest = self._encoder.encode(self._pixels)
            self._features = torch.zeros_like(largest)
            for tiling, crops in (((1, 1), 1), ((1, 2), 3)):
                self._encoder.project(self._features.new_zeros(crops, *largest.shape[1:]), tiling)
            del largest
            for count in range(len(self._pixels), 0, -1):
                self._capture(capturer, count, choose)
        taken = max(0, capturer.used_bytes() - before)
        return GraphReport(len(self._replays), time.perf_counter() - begun, taken)

    def _capture(self, capturer: Capturer, count: int, choose: Chooser) -> None:
        """Capture one number of crops with every backend; keep the quickest."""
        names, replays, reasons = [], [], []
        for backend in BACKENDS:
            try:
                replays.append(capturer.capture(partial(self._run, count, backend)))
                names.append(backend.name)
            except Exception as error:
                reasons.append(f"{backend.name}: {type(error).__name__}: {error}")
        if not replays:
            _logger.warning(
                "%d crops are encoded without a CUDA graph, because capturing failed with every attention: %s",
                count, "; ".join(reasons),
            )  # fmt: skip
            return
        best = choose(replays)
        self._replays[count] = replays[best]
        _logger.debug("%d crops are encoded with %s, the quickest of %s", count, names[best], ", ".join(names))

    def _run(self, count: int, backend: SDPBackend) -> None:
        with only_backend(backend):
            self._features[:count].copy_(self._encoder.encode(self._pixels[:count]))

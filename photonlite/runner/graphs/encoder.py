"""CUDA graphs of the image encoder: captured at start for each number of crops, replayed with one call.

```
crops [n, C, C, 3] ── copy ──> pixels ── graph of n crops ──> features ── copy ──> the caller's, to keep
                              (fixed)                        (fixed)
```

With few crops the kernels of a block take less time than their launches. For each number of crops every attention
backend is captured and the fastest is kept: which one that is depends on the shape.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from photonlite.kernels.autotune import BACKENDS, fastest, only_backend
from photonlite.models.base import CropEncoder
from photonlite.runner.graphs.capture import Capturer, GraphReport, measured

Chooser = Callable[[Sequence[Callable[[], None]]], int]
"""Returns the index of the fastest."""

_logger = logging.getLogger("photonlite")


class GraphedEncoder:
    """An image encoder whose first stage runs as a graph; see `models.base.CropEncoder`.

    Its methods are called in inference mode. Launches have at most `max_crops` crops of `crop_size` pixels a side.
    """

    def __init__(self, encoder: CropEncoder, *, crop_size: int, max_crops: int, device: torch.device) -> None:
        self._encoder = encoder
        self._pixels = torch.zeros(max_crops, crop_size, crop_size, 3, dtype=torch.uint8, device=device)
        self._features = torch.empty(0, device=device)
        self._replays: dict[int, Callable[[], None]] = {}

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode crops, uint8 ``[n, C, C, 3]``, to new features ``[n, P, D]``; numbers not captured run eagerly."""
        count = len(pixels)
        replay = self._replays.get(count)
        if replay is None:
            return self._encoder.encode(pixels)
        self._pixels[:count].copy_(pixels)
        replay()
        return self._features[:count].clone()  # the next replay overwrites them

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map features to embeddings, eagerly: it is a handful of kernels."""
        return self._encoder.project(features, tiling)

    def capture(self, capturer: Capturer, choose: Chooser = fastest) -> GraphReport:
        """Capture every number of crops, largest first, and warm up the projection.

        The capturer may make other graphs from the same memory pool later, if all are replayed one after the other.
        """
        with torch.inference_mode(), measured(capturer) as report:
            self._pixels.random_(0, 256)  # the time of a product depends on the numbers, a little
            largest = self._encoder.encode(self._pixels)
            self._features = torch.zeros_like(largest)
            for tiling, crops in (((1, 1), 1), ((1, 2), 3)):
                self._encoder.project(self._features.new_zeros(crops, *largest.shape[1:]), tiling)
            del largest
            for count in range(len(self._pixels), 0, -1):
                self._capture(capturer, count, choose)
            return report(len(self._replays))

    def _capture(self, capturer: Capturer, count: int, choose: Chooser) -> None:
        """Capture one number of crops with every backend; keep the fastest."""
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
        _logger.debug("%d crops are encoded with %s, the fastest of %s", count, names[best], ", ".join(names))

    def _run(self, count: int, backend: SDPBackend) -> None:
        with only_backend(backend):
            self._features[:count].copy_(self._encoder.encode(self._pixels[:count]))

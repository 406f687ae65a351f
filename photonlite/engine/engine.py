"""`Engine`: a model, a device and a configuration become a thread that answers requests."""

import itertools
import secrets
import time
import weakref
from contextlib import nullcontext

import torch

from photonlite.config import EngineConfig
from photonlite.device.base import Array
from photonlite.engine.build import build
from photonlite.engine.loop import EngineLoop
from photonlite.models.base import Model
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.request import Request
from photonlite.sequence import ImageRef, Sequence, Sink


class Engine:
    """Answers requests about images, many at a time.

    Closing it, or dropping the last reference to it, ends its threads. `build` says what its making raises.
    """

    def __init__(
        self, model: Model, device: torch.device, dtype: torch.dtype, config: EngineConfig | None = None
    ) -> None:
        self.config = config or EngineConfig()
        parts = build(model, device, dtype, self.config)
        self.memory = parts.memory
        self.graphs = parts.graphs
        self._core = parts.core
        self._where = device
        self._prefix_length = model.shape.prefix_length
        self._numbers = itertools.count()
        self._loop = EngineLoop(parts.core)
        self._finalizer = weakref.finalize(self, self._loop.stop, drain=False)

    @property
    def max_batch(self) -> int:
        """Requests that are decoded together."""
        return self._core.scheduler.limits.max_batch

    @property
    def alive(self) -> bool:
        """Whether requests are taken and answered."""
        return self._loop.alive

    @property
    def metrics(self) -> EngineMetrics:
        """Counters, gauges and histograms; the gauges are those of this moment."""
        metrics, scheduler, pages = self._core.metrics, self._core.scheduler, self._core.scheduler.cache.pages
        metrics.pages_free, metrics.pages_total, metrics.page_bytes = pages.free, pages.usable, self.memory.page_bytes
        metrics.pages_cached = scheduler.cache.prefix.idle_pages
        metrics.running, metrics.waiting = len(scheduler.running), scheduler.num_waiting
        metrics.in_flight = len(self._core.pipeline.in_flight)
        metrics.open_realtime = self._core.requests.realtime
        metrics.open_bulk = max(0, len(self._core.open) - metrics.open_realtime)
        now = time.perf_counter()
        metrics.oldest_realtime_s, metrics.oldest_bulk_s = (
            0.0 if (oldest := scheduler.oldest_submission(realtime=realtime)) is None else now - oldest
            for realtime in (True, False)
        )
        return metrics

    @property
    def last_tick_s(self) -> float:
        """Seconds since the engine thread's last sign of life; see `EngineLoop`."""
        return self._loop.last_tick_s

    @property
    def tracer(self) -> Tracer:
        """Spans of every phase on host and device; `enabled` switches recording on and off."""
        return self._core.tracer

    def submit(
        self,
        request: Request,
        sink: Sink,
        image: ImageRef | None = None,
        *,
        deadline_s: float | None = None,
        preprocess_s: float = 0.0,
        submitted: float | None = None,
    ) -> Sequence:
        """Put a request into the engine's inbox, from any thread; returns at once.

        Args:
            request: From a skill.
            sink: Receives tokens and the end, on the engine thread.
            image: What it is about.
            deadline_s: Seconds from `submitted` after which the answer is worthless.
            preprocess_s: What decoding the image took.
            submitted: When the caller asked, in seconds of `time.perf_counter`; now unless given.

        Raises:
            CapacityError: The request could not run even alone.
            ValueError: It holds what a step could not carry.
            ModelError: The engine is closed.
            EngineDiedError: The engine has died.
        """
        begun = time.perf_counter() if submitted is None else submitted
        sequence = Sequence(
            number=next(self._numbers),
            request=request,
            sink=sink,
            prefix_len=1 if image is None else self._prefix_length,
            image=image,
            deadline=None if deadline_s is None else begun + deadline_s,
            seed=secrets.randbits(63) if request.settings.seed is None else int(request.settings.seed),
        )
        sequence.times.submitted = begun
        sequence.times.preprocess_s = preprocess_s
        self._loop.submit(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Cancel a request, from any thread at any moment; one that has ended stays as it is."""
        self._loop.cancel(sequence)

    def wake(self) -> None:
        """Wake the engine: crops that it waits for are cut."""
        self._loop.wake()

    @property
    def cuts_images(self) -> bool:
        """Whether the device cuts crops, from images that are copied whole; on the CPU Pillow does it."""
        return self._where.type == "cuda"

    def host_array(self, shape: tuple[int, ...]) -> Array:
        """Allocate uninitialised uint8 memory from which the device copies without waiting."""
        with torch.cuda.device(self._where) if self.cuts_images else nullcontext():
            # The array keeps the tensor. Clearing a large image's memory would take as long as filling it.
            array: Array = torch.empty(shape, dtype=torch.uint8, pin_memory=self.cuts_images).numpy()
        return array

    def close(self, *, drain: bool = True) -> None:
        """Refuse further requests, finish (`drain`) or fail those that are open, release the device."""
        self._loop.close(drain=drain)

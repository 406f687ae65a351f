"""`Engine`: a model, a device and a configuration become a thread that answers requests."""

import contextlib
import itertools
import logging
import secrets
import time
import weakref
from collections.abc import Sequence as ListLike

import torch
from torch import nn

from photonlite.config import EngineConfig
from photonlite.device.base import Array
from photonlite.engine.adapters import AdapterLoader, AdapterStore
from photonlite.engine.build import build
from photonlite.engine.core import no_adapters
from photonlite.engine.faults import without_frames
from photonlite.engine.layout import lay_out
from photonlite.engine.loop import EngineLoop
from photonlite.errors import CapacityError, EngineDiedError, PhotonliteError, SettingsError
from photonlite.image_inputs import ImageRef
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterWeights
from photonlite.models.base import Model
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.request import Request
from photonlite.runner.stored_images import ImageKeeper, Store
from photonlite.scheduler.adapters import AdapterLoad
from photonlite.sequence import Sequence, Sink
from photonlite.tuning.split import Split

_logger = logging.getLogger("photonlite")


class Engine:
    """Answers requests about images, many at a time; closing it or dropping the last reference ends its threads."""

    def __init__(
        self,
        model: Model,
        device: torch.device,
        dtype: torch.dtype,
        config: EngineConfig | None = None,
        *,
        store: Store | None = None,  # takes what was computed for images
        split: Split | None = None,  # how the card is divided, by a tuning file
    ) -> None:
        self.config = config or EngineConfig()
        self._store, self._split = store, split
        self._keeper = None if store is None else ImageKeeper(device, store)
        parts = build(model, device, dtype, self.config, self._keeper, split)
        self.memory = parts.memory
        self.graphs = parts.graphs
        self._core = parts.core
        self._where = device
        self._dtype = dtype
        self._model = model
        self._numbers = itertools.count()
        self._loop = EngineLoop(parts.core)
        self._model_runner = parts.model_runner
        self._adapters: AdapterLoader | None = None
        if parts.team is not None:
            parts.team.watch(self._loop.fail)
        self._finalizer = weakref.finalize(self, self._loop.stop, drain=False)

    def use_adapters(self, store: AdapterStore) -> None:
        """Take requests that have adapters of a store from now on; from any thread, one at a time.

        Raises a SettingsError where several ranks run the model.
        """
        if self._adapters is not None:
            return
        if self.config.tensor_parallel > 1 or not isinstance(self._model, nn.Module):
            raise SettingsError("adapters are not divided: leave the engine setting 'tensor_parallel' at 1 to use any")
        if self._where.type == "cuda" and self.config.fused:
            _logger.info("Not fused: images and experts with adapters")
        bank = AdapterBank(self._model, self.config.adapter_slots, self.config.adapter_rank)
        core, loop = self._core, self._loop
        self._model_runner.use_adapters(bank)

        def tell(load: AdapterLoad, error: BaseException | None) -> None:
            loop.post(lambda: core.note_adapter(load, error))

        self._adapters = AdapterLoader(bank, store, self._where, tell)
        core.load_adapter = self._adapters.begin

    def reserve_adapter(self, weights: AdapterWeights) -> None:
        """Allocate what an adapter needs on the device in any slot; a CapacityError if there is no memory for it.

        On a card decode steps and prompts are captured with it. From any thread, one at a time.
        """
        slots, rank = self.config.adapter_slots, self.config.adapter_rank
        with torch.cuda.device(self._where) if self.cuts_images else contextlib.nullcontext():
            try:
                graphs = self._model_runner.reserve_adapter(weights)
            except (MemoryError, torch.OutOfMemoryError) as cause:
                raise CapacityError(
                    f"there is no memory left for {slots} adapters of rank {rank}: lower adapter_slots, "
                    "adapter_rank or gpu_memory_fraction"
                ) from without_frames(cause)
            except Exception:
                self.check()  # where the engine has died meanwhile, its runner has nothing left to capture with
                raise
            self.check()  # or it has captured nothing
            if graphs is not None:
                shown = graphs.graphs, graphs.seconds, graphs.bytes / 2**20
                _logger.info("CUDA graphs with adapters: %d in %.1f s, %.0f MiB", *shown)

    @property
    def max_batch(self) -> int:
        return self._core.scheduler.limits.max_batch

    @property
    def alive(self) -> bool:
        return self._loop.alive

    @property
    def metrics(self) -> EngineMetrics:
        """Counters, gauges and histograms; the gauges are those of this moment."""
        metrics, scheduler, pages = self._core.metrics, self._core.scheduler, self._core.scheduler.cache.pages
        metrics.pages_free, metrics.pages_usable, metrics.page_bytes = pages.free, pages.usable, self.memory.page_bytes
        metrics.pages_cached = scheduler.cache.prefix.idle_pages
        for name, count in scheduler.running.router.figures().items():
            setattr(metrics, f"pages_{name}", count)
        metrics.running, metrics.waiting = len(scheduler.running), scheduler.num_waiting
        metrics.swapped = len(scheduler.running.swap)
        metrics.in_flight = len(self._core.in_flight)
        metrics.open_realtime = self._core.open_realtime
        metrics.open_bulk = max(0, len(self._core.open) - metrics.open_realtime)
        now = time.perf_counter()
        metrics.oldest_realtime_s, metrics.oldest_bulk_s = (
            0.0 if (oldest := scheduler.oldest_submission(realtime=realtime)) is None else now - oldest
            for realtime in (True, False)
        )
        return metrics

    def get_unit_costs(self) -> tuple[float | None, float | None]:
        """Seconds that a crop and a position of a prompt take on the device; None before the first measurement."""
        policy = self._core.scheduler.policy
        return policy.crops.per_unit, policy.prompts.per_unit

    @property
    def last_tick_s(self) -> float:
        return self._loop.last_tick_s

    @property
    def waits_for_device(self) -> bool:
        """Whether the engine thread waits for a launched step to end, or is just reading its results."""
        return any(step.state == "committing" for step in self._core.in_flight)

    @property
    def tracer(self) -> Tracer:
        return self._core.tracer

    def submit(
        self,
        request: Request,
        sink: Sink,
        images: ListLike[ImageRef] = (),
        *,
        deadline_s: float | None = None,
        preprocess_s: float = 0.0,
        submitted: float | None = None,
    ) -> Sequence:
        """Put a request into the engine's inbox, from any thread; returns at once.

        `deadline_s` counts from `submitted`, a time of `time.perf_counter`, by default now. Raises a CapacityError or a
        ValueError as `Scheduler.prepare`, an ImageError for an image that the model cannot read, a ModelError once
        closed, an EngineDiedError once dead.
        """
        begun = time.perf_counter() if submitted is None else submitted
        layout = lay_out(self._model, request, images)
        sequence = Sequence(
            number=next(self._numbers),
            request=layout.request,
            sink=sink,
            prefix_len=layout.prefix_len,
            image=layout.image,
            inside=layout.inside,
            turns=layout.turns,
            prompt_block=layout.prompt_block,
            deadline=None if deadline_s is None else begun + deadline_s,
            seed=secrets.randbits(63) if request.settings.seed is None else int(request.settings.seed),
        )
        sequence.times.submitted = begun
        sequence.times.preprocess_s = preprocess_s
        self._loop.submit(sequence)
        return sequence

    def check(self) -> None:
        """Raise what `submit` raises of every request once the engine is closed or dead."""
        self._loop.check()

    def restarted(self) -> "Engine":
        """Return a new engine over the same weights in the place of this one, which must have ended.

        Raises an EngineDiedError where the device no longer works in this process, a CapacityError as `build`.
        """
        self.close(drain=False)  # frees what it had on the device
        try:
            return Engine(self._model, self._where, self._dtype, self.config, store=self._store, split=self._split)
        except PhotonliteError:
            raise
        except Exception as cause:
            raise EngineDiedError(
                f"the engine cannot be started again on {self._where}: {type(cause).__name__}; after a CUDA error only "
                "a new process can use the card, so start one and load the model there"
            ) from without_frames(cause)

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
        with torch.cuda.device(self._where) if self.cuts_images else contextlib.nullcontext():
            # The array keeps the tensor. Clearing a large image's memory would take as long as filling it.
            array: Array = torch.empty(shape, dtype=torch.uint8, pin_memory=self.cuts_images).numpy()
        return array

    def close(self, *, drain: bool = True) -> None:
        """Refuse further requests, finish (`drain`) or fail those that are open, release the device."""
        self._loop.close(drain=drain)
        if self._keeper is not None:
            self._keeper.close()
        if self._adapters is not None:
            self._adapters.close()
            # Both know the bank, whose memory a new engine needs.
            self._adapters, self._core.load_adapter = None, no_adapters

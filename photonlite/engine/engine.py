"""`Engine`: a model, a device and a configuration become a thread that answers requests.

`EngineLoop` drives that thread: it takes requests in, ticks while there is something to do, sleeps while there is not.
Other threads only append notes to its inbox; everything else belongs to the engine thread. It keeps no reference to the
engine, so that dropping the last reference to an engine ends it.
"""

import atexit
import contextlib
import itertools
import logging
import os
import queue
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as ListLike

import torch
from torch import nn

from photonlite.config import EngineConfig
from photonlite.device.base import Array
from photonlite.engine.adapters import AdapterLoader, AdapterStore
from photonlite.engine.build import build
from photonlite.engine.core import EngineCore, no_adapters
from photonlite.engine.faults import copied, without_frames
from photonlite.engine.layout import lay_out
from photonlite.errors import CapacityError, EngineDiedError, ModelError, PhotonliteError, SettingsError
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterWeights
from photonlite.models.base import Model
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.request import Request
from photonlite.runner.stored_images import ImageKeeper, Store
from photonlite.scheduler.adapters import AdapterLoad
from photonlite.sequence import ImageRef, Sequence, Sink
from photonlite.tuning.split import Split

_LONGEST_SLEEP = 0.5
"""Seconds between an idle engine's ticks: monitoring counts a second without one as trouble."""

_NOTES = 32
"""Notes that are read before each tick: running requests must not wait until thousands have been read."""

_logger = logging.getLogger("photonlite")

_FAULT = "the engine has stopped after a fault of its own, which the log tells: call the model's restart()"

# A thread that is inside torch when the interpreter exits aborts the process: running threads are ended before.
_loops: "weakref.WeakSet[EngineLoop]" = weakref.WeakSet()
# A thread drops its loop last of all, and with it the model's memory: it must be joined even then.
_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    threads = list(_threads)
    for loop in list(_loops):
        loop.stop(drain=False)
    for thread in threads:
        thread.join()


def _disown_all() -> None:
    """Disable loops in a forked process: their threads stayed in the parent, and locks they held are never released."""
    for loop in list(_loops):
        loop.disown()
    _loops.clear()
    _threads.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_disown_all)


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
        self._model_runner.adapters = bank

        def tell(load: AdapterLoad, error: BaseException | None) -> None:
            loop.post(lambda: core.note_adapter(load, error))

        self._adapters = AdapterLoader(bank, store, self._where, tell)
        core.load_adapter = self._adapters.begin

    def reserve_adapter(self, weights: AdapterWeights) -> None:
        """Allocate what an adapter needs on the device in any slot; a CapacityError if there is no memory for it.

        On a card decode steps and prompts are captured with it. From any thread, one at a time.
        """
        runner, bank = self._model_runner, self._model_runner.adapters
        if bank is None:
            self.check()  # an engine that has died meanwhile has none any more
            raise AssertionError("adapters are reserved before the engine uses any")
        with torch.cuda.device(self._where) if self.cuts_images else contextlib.nullcontext():
            try:
                bank.reserve(weights)
                graphs = runner.capture_adapters()
            except (MemoryError, torch.OutOfMemoryError) as cause:
                raise CapacityError(
                    f"there is no memory left for {bank.slots} adapters of rank {bank.rank}: lower adapter_slots, "
                    "adapter_rank or gpu_memory_fraction"
                ) from without_frames(cause)
            except Exception:
                self.check()  # where the engine has died meanwhile, its runner has nothing left to capture
                raise
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
        metrics.pages_free, metrics.pages_total, metrics.page_bytes = pages.free, pages.usable, self.memory.page_bytes
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


class EngineLoop:
    """Drives an :class:`EngineCore`, which belongs to this loop from now on, on a thread of its own."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._inbox: deque[Callable[[], None]] = deque()
        # Both are reentrant: garbage collection may drop a request on any line, which cancels it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._gate = threading.RLock()
        self._refusal: PhotonliteError | None = None
        self._stopping = False
        self._last_tick = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="photonlite-engine", daemon=True)
        _loops.add(self)
        _threads.add(self._thread)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._refusal is None and self._thread.is_alive()

    @property
    def last_tick_s(self) -> float:
        """Seconds since the last tick: under one while idle, else up to a step; it grows once the thread has ended."""
        return time.perf_counter() - self._last_tick

    def submit(self, sequence: Sequence) -> None:
        """Check, hash and submit a request on this thread; raises as `Engine.submit`, later errors reach its sink."""
        self._core.scheduler.prepare(sequence)
        with self._gate:  # a note is either refused here or read: none is left in the inbox of an ended thread
            self.check()
            self._inbox.append(lambda: self._submit(sequence))
        self.wake()

    def check(self) -> None:
        """Raise why requests are refused, if they are."""
        if self._refusal is not None:
            raise copied(self._refusal)  # raised many times

    def cancel(self, sequence: Sequence) -> None:
        self.post(lambda: self._core.cancel(sequence))

    def post(self, note: Callable[[], None]) -> None:
        """Run a function on the engine thread; does nothing once that has ended."""
        with self._gate:
            if self._refusal is None or self._thread.is_alive():
                self._inbox.append(note)
        self.wake()

    def fail(self, error: EngineDiedError) -> None:
        """Let the engine die of an error, from any thread."""

        def note() -> None:
            raise error

        self.post(note)

    def wake(self) -> None:
        self._wake.put(None)

    def close(self, *, drain: bool) -> None:
        """Refuse new requests, finish (`drain`) or fail open ones, and wait for the thread to end."""
        self.stop(drain=drain)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop(self, *, drain: bool) -> None:
        """Close without waiting for the thread to end."""
        closed = ModelError("the model is closed: load it again")
        with self._gate:
            self._refusal = self._refusal or closed
            if not drain:
                self._inbox.append(lambda: self._core.end_all(closed))
            self._stopping = True
        self.wake()

    def disown(self) -> None:
        """Refuse everything in a forked process: the thread stayed in the parent, with the locks it held."""
        self._gate = threading.RLock()
        self._wake = queue.SimpleQueue()
        self._inbox.clear()
        self._refusal = ModelError(
            "this process was forked, and the model's threads stayed behind: load it in this process"
        )

    def _run(self) -> None:
        try:
            self._work()
            self._core.runner.close()
        except BaseException as cause:
            self._die(cause)

    def _work(self) -> None:
        core = self._core
        while True:
            self._last_tick = time.perf_counter()
            while not self._wake.empty():
                self._wake.get()
            for _ in range(min(_NOTES, len(self._inbox))):
                self._inbox.popleft()()
            if core.tick() or self._inbox:
                continue
            if self._stopping and core.idle and not self._inbox:
                return
            self._sleep()

    def _sleep(self) -> None:
        wake_at, seconds = self._core.wake_at, _LONGEST_SLEEP
        if wake_at is not None:
            seconds = min(seconds, max(0.0, wake_at - time.perf_counter()))
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=seconds)

    def _submit(self, sequence: Sequence) -> None:
        try:
            self._core.submit(sequence)
        except Exception as error:  # fails this request alone
            sequence.finalized = True
            sequence.error = error
            with contextlib.suppress(Exception):
                sequence.sink.on_finish(sequence)

    def _die(self, cause: BaseException) -> None:
        """Fail all open requests and refuse new ones: waiting callers must get an error."""
        _logger.critical("the engine has stopped", exc_info=without_frames(cause))
        error = cause if isinstance(cause, EngineDiedError) else EngineDiedError(_FAULT)
        if error is not cause:
            error.__cause__ = cause
        without_frames(error)
        with self._gate:
            self._refusal = error
            notes = list(self._inbox)
            self._inbox.clear()
        for note in notes:
            with contextlib.suppress(Exception):
                note()
        self._core.end_all_after_fault(error)
        with contextlib.suppress(Exception):
            self._core.runner.close()

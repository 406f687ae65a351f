"""`EngineLoop`: the thread that drives an engine core.

It takes requests in, ticks while there is something to do, sleeps while there is not. Other threads only append notes
to its inbox; everything else belongs to the engine thread. It keeps no reference to the engine, so that dropping the
last reference to an engine ends it.
"""

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from photonlite.engine.core import EngineCore
from photonlite.engine.faults import copied, without_frames
from photonlite.errors import EngineDiedError, ModelError, PhotonliteError
from photonlite.pauses import short_turns
from photonlite.sequence import Sequence

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

    @short_turns()
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

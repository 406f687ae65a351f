"""`RealtimeLoop`: ask a model about the newest frame, again and again.

```
caller's thread     submit ──> LoopState: one frame waits
                                   │ newest frame
loop's own thread             Driver ──> model.adetect(..., deadline_s, realtime=True)
                                   │ results in frame order
caller's threads    latest, iterators <── LatestResult ──> on_result
```
"""

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from photonlite.errors import RequestCancelledError, UnknownAdapterError, UnsupportedSkillError
from photonlite.realtime.frames import (
    Arguments,
    Changes,
    FrameFailure,
    FrameJob,
    FrameOutcome,
    FrameResult,
    Question,
    TaskName,
)
from photonlite.realtime.latest import LatestResult, Results
from photonlite.realtime.state import LoopState, LoopStats
from photonlite.realtime.tracking import FrameTracker
from photonlite.results.tracking import require_trackers

if TYPE_CHECKING:
    from photonlite.api import VisionModel

_logger = logging.getLogger("photonlite")


class Driver:
    """Begins frames as soon as there is room for them. All methods belong to the event loop that is running.

    What `answer` raises is that frame's failure. `deliver` gets one outcome at a time, results in the order of frames.
    """

    def __init__(
        self,
        state: LoopState,
        answer: Callable[[FrameJob], Awaitable[Mapping[str, Any]]],
        deliver: Callable[[FrameOutcome], None],
    ) -> None:
        self._state = state
        self._answer = answer
        self._deliver = deliver
        self._tracker = FrameTracker()
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Begin what can begin; to be called after every submission."""
        while (job := self._state.begin()) is not None:
            task = asyncio.create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, job))

    async def drain(self) -> None:
        """Wait until nothing is left to do; the waiting frame is answered."""
        self.wake()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # what has just ended is delivered in between

    def cancel(self) -> None:
        """Cancel what is in flight; nothing else begins once the state is closed without draining."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, job: FrameJob) -> None:
        outcome: FrameOutcome | None
        try:
            result = await self._answer(job)
        except Exception as error:  # one frame's error ends that frame alone
            outcome = self._state.fail(job, error)
        else:
            outcome = self._state.finish(job, result)
        self._next(outcome, job)

    def _ended(self, job: FrameJob, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before its first step
            self._next(self._state.fail(job, RequestCancelledError("the real-time loop was closed")), job)

    def _next(self, outcome: FrameOutcome | None, job: FrameJob) -> None:
        self.wake()
        if outcome is not None:
            # After the first step of the next frame, which then runs while the caller's code looks at this one.
            asyncio.get_running_loop().call_soon(self._hand_out, outcome, job.question)

    def _hand_out(self, outcome: FrameOutcome, question: Question) -> None:
        if isinstance(outcome, FrameResult):
            outcome = self._tracker.identify(outcome, question)
        self._deliver(outcome)


class RealtimeLoop:
    """Asks a model about the newest frame, for cameras and robots.

    ```python
    with photonlite.RealtimeLoop(model, task="detect", object="mug", deadline_ms=33) as loop:
        loop.submit(frame)        # from the thread that has it
        newest = loop.latest()    # from the thread that steers
    ```

    At most one frame waits: a newer one takes its place, and it is counted as dropped. Results come in the order of
    their frames. A frame that fails is counted and handed to `on_error`, and the first of each kind of error is logged;
    the next frame is not affected. Requests go before the engine's other work, and what can no longer be in time is
    given up.

    `for result in loop` and `async for result in loop` give newer and newer results until the loop is closed; see
    :class:`photonlite.realtime.Results`.

    Args:
        model: Answers; it may serve others at the same time.
        task: "detect", "point", "segment", "caption" or "query".
        deadline_ms: Milliseconds from a frame's submission after which its answer is worthless; None for no end.
        track: Whether detect, point and segment give their items a `track_id`: see :class:`photonlite.Tracker`. Ids
            count from 1 again when something else is asked.
        on_result: Called with every `FrameResult`, on the loop's own thread: the next frame is being answered
            meanwhile, but no further one begins until it returns. What it raises is logged and counted.
        on_error: Called with every `FrameFailure`, likewise.
        in_flight: Frames that may be answered at the same time. 1 gives the lowest latency; 2 gives more results per
            second where one frame alone does not keep the device busy.
        window: Latest results that the percentiles of `stats` are about.
        copy: Whether arrays are copied when they are submitted, so that a camera may fill them again at once.
        clock: Gives the time in seconds.
        **arguments: Of the task, as the model's method takes them: object (one name or a list), min_score, overlap,
            tile, question, length, settings, spatial_refs, reasoning, adapter.

    Raises:
        InputError: There is no such task, or an argument is unknown, missing or unusable.
        UnsupportedSkillError: The checkpoint was not trained for the task.
        UnknownAdapterError: No adapter of this name is loaded.
        MissingDependencyError: `track` is on, and the package trackers is not installed.
    """

    def __init__(
        self,
        model: "VisionModel",
        task: TaskName = "detect",
        *,
        deadline_ms: float | None = None,
        track: bool = False,
        on_result: Callable[[FrameResult], object] | None = None,
        on_error: Callable[[FrameFailure], object] | None = None,
        in_flight: int = 1,
        window: int = 1000,
        copy: bool = True,
        clock: Callable[[], float] = time.monotonic,
        **arguments: Unpack[Arguments],
    ) -> None:
        question = Question.of(task, deadline_ms=deadline_ms, track=track, **arguments)
        self._model = model
        self._check(question)
        self._on_result = on_result
        self._on_error = on_error
        self._copy = copy
        self._state = LoopState(question, clock, in_flight=in_flight, window=window)
        self._latest = LatestResult()
        self._events = asyncio.new_event_loop()
        self._driver = Driver(self._state, self._answer, self._deliver)
        self._ending = asyncio.Event()
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="photonlite-realtime", daemon=True)
        self._thread.start()

    @property
    def question(self) -> Question:
        """What the next frame will be asked."""
        return self._state.question

    @property
    def stats(self) -> LoopStats:
        """Statistics at this moment."""
        return self._state.stats()

    @property
    def closed(self) -> bool:
        """Whether frames are refused."""
        return self._state.closed

    def submit(self, frame: Any, stamp: Any = None) -> int:
        """Hand in a frame. Never waits; a frame that waited for its turn is dropped.

        Args:
            frame: An image in any form that the model takes. Arrays are copied unless `copy` is off; everything else
                must not change until its result is there.
            stamp: Comes back with the result; the time of submission unless given.

        Returns:
            The frame's number, counted from 0.

        Raises:
            InputError: The loop is closed.
        """
        copied = frame.copy() if self._copy and isinstance(frame, np.ndarray) else frame
        number = self._state.submit(copied, stamp).number
        self._call(self._driver.wake)
        return number

    def latest(self) -> FrameResult | None:
        """Return the newest result with its age at this moment; None where there is none yet."""
        newest = self._latest.newest
        return None if newest is None else self._with_age(newest)

    def change(self, **changes: Unpack[Changes]) -> None:
        """Ask something else from the next frame on, also of the one that waits.

        Args:
            **changes: `deadline_ms`, `track` and arguments of the task; the rest stays as it is. A change that names a
                `task` gives all its arguments.

        Raises:
            InputError: As for a new loop; everything stays as it was.
            UnsupportedSkillError: The checkpoint was not trained for the task.
            UnknownAdapterError: No adapter of this name is loaded.
            MissingDependencyError: `track` is on, and the package trackers is not installed.
        """
        self._check(self._state.question.changed(changes))
        self._state.change(changes)

    def close(self, *, drain: bool = True) -> None:
        """Refuse frames, and let iterators end. Closing twice is fine.

        Args:
            drain: Whether to wait for the frames that are there; else they are cancelled.
        """
        self._state.close(drain=drain)
        if not drain:
            self._call(self._driver.cancel)
        self._call(self._ending.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __iter__(self) -> Results:
        return Results(self._latest, self._with_age)

    __aiter__ = __iter__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        question, stats = self.question, self.stats
        asked = [question.task, *(f"{name}={value!r}" for name, value in question.arguments.items())]
        if question.track:
            asked.append("track=True")
        if question.deadline_s is not None:
            asked.append(f"deadline_ms={1000 * question.deadline_s:g}")
        counts = f"{stats.answered} answered, {stats.rate:.1f} per second, {sum(stats.dropped.values())} dropped"
        return f"RealtimeLoop({', '.join(asked)}: {counts}, {stats.failed} failed{', closed' * self.closed})"

    def _check(self, question: Question) -> None:
        if question.track:
            require_trackers()
        known = self._model.skills
        if question.task not in known:
            raise UnsupportedSkillError(
                f"the checkpoint was not trained for {question.task}: choose one of {', '.join(known)}"
            )
        adapter = question.arguments.get("adapter")
        if adapter is not None and adapter not in (names := [one.name for one in self._model.adapters()]):
            raise UnknownAdapterError(f"no adapter is called {adapter!r:.100}: loaded are {', '.join(names) or 'none'}")

    def _with_age(self, result: FrameResult) -> FrameResult:
        return dataclasses.replace(result, age_s=self._state.age(result))

    def _call(self, work: Callable[[], None]) -> None:
        """Call `work` on the loop's own thread, unless that has ended."""
        try:
            self._events.call_soon_threadsafe(work)
        except RuntimeError:
            if not self._events.is_closed():
                raise

    def _work(self) -> None:
        try:
            self._events.run_until_complete(self._serve())
        finally:
            self._state.end()
            self._latest.close()
            self._events.close()

    async def _serve(self) -> None:
        await self._ending.wait()
        await self._driver.drain()

    async def _answer(self, job: FrameJob) -> Mapping[str, Any]:
        method: Callable[..., Awaitable[Mapping[str, Any]]] = getattr(self._model, f"a{job.question.task}")
        return await method(job.frame.image, **job.question.arguments, deadline_s=job.deadline_s, realtime=True)

    def _deliver(self, outcome: FrameOutcome) -> None:
        try:
            if isinstance(outcome, FrameResult):
                self._latest.publish(outcome)
                if self._on_result is not None:
                    self._on_result(outcome)
            else:
                self._log(outcome)
                if self._on_error is not None:
                    self._on_error(outcome)
        except Exception:  # the caller's own code must not stop the loop
            self._state.count_callback_error()
            _logger.exception("a callback of the real-time loop has failed on frame %d", outcome.number)

    def _log(self, failure: FrameFailure) -> None:
        """Log the first error of each kind: a broken camera would write thirty lines a second."""
        name = type(failure.error).__name__
        if name not in self._logged:
            self._logged.add(name)
            _logger.warning("frame %d of the real-time loop has failed: %s: %s", failure.number, name, failure.error)

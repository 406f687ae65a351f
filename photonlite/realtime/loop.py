"""`RealtimeLoop`: ask a model about the newest frame, again and again.

```
caller's thread     submit ──> LoopState: waiting place
                                   │ newest frame
loop's own thread             Driver ──> model.adetect(..., deadline_s, realtime=True)
                                   │ results in frame order
caller's threads    latest, iterators <── Board ──> on_result
```
"""

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from photonlite.errors import UnsupportedSkillError
from photonlite.realtime.board import Board, Results
from photonlite.realtime.driver import Driver
from photonlite.realtime.outcomes import FrameFailure, FrameResult, Job, Outcome
from photonlite.realtime.question import Question
from photonlite.realtime.state import LoopState
from photonlite.realtime.stats import LoopStats

if TYPE_CHECKING:
    from photonlite.api import VisionModel

_logger = logging.getLogger("photonlite")


class RealtimeLoop:
    """Asks a model about the newest frame, for cameras and robots.

    ```python
    with photonlite.RealtimeLoop(model, task="detect", object="mug", deadline_ms=33) as loop:
        loop.submit(frame)        # from whichever thread has it
        newest = loop.latest()    # from whichever thread steers
    ```

    At most one frame waits: a newer one takes its place, and it is counted as dropped. Results come in the order of
    their frames. A frame that fails is counted and handed to `on_error`, and the first of each kind of error is logged;
    the next frame is not affected. Requests go before the engine's other work, and what can no
    longer be in time is given up.

    A result can also be had by iterating: `for result in loop` and `async for result in loop` give newer and newer
    results until the loop is closed; see :class:`photonlite.realtime.Results`.

    Args:
        model: Answers; it may serve others at the same time.
        task: "detect", "point", "segment", "caption" or "query".
        deadline_ms: Milliseconds from a frame's submission after which its answer is worthless; None for no end.
        on_result: Called with every `FrameResult`, on the loop's own thread: the next frame is being answered
            meanwhile, but no further one begins until it returns. What it raises is logged and counted.
        on_error: Called with every `FrameFailure`, likewise.
        in_flight: Frames that may be asked about at the same time. 1 gives the lowest latency; 2 gives more results per
            second where one frame alone does not keep the device busy.
        window: Latest results that the percentiles of `stats` are about.
        copy: Whether arrays are copied when they are submitted, so that a camera may fill them again at once.
        clock: Gives the time in seconds.
        **arguments: Of the task, as the model's method takes them: object, question, length, settings, spatial_refs,
            reasoning.

    Raises:
        InputError: There is no such task, or an argument is unknown, missing or unusable.
        UnsupportedSkillError: The checkpoint was not trained for the task.
    """

    def __init__(
        self,
        model: "VisionModel",
        task: str = "detect",
        *,
        deadline_ms: float | None = None,
        on_result: Callable[[FrameResult], object] | None = None,
        on_error: Callable[[FrameFailure], object] | None = None,
        in_flight: int = 1,
        window: int = 1000,
        copy: bool = True,
        clock: Callable[[], float] = time.monotonic,
        **arguments: Any,
    ) -> None:
        question = Question.of(task, deadline_ms=deadline_ms, **arguments)
        self._model = model
        self._check_skill(question)
        self._on_result = on_result
        self._on_error = on_error
        self._copy = copy
        self._state = LoopState(question, clock, in_flight=in_flight, window=window)
        self._board = Board()
        self._events = asyncio.new_event_loop()
        self._driver = Driver(self._state, self._answer, self._deliver)
        self._ending = asyncio.Event()
        self._aborting = asyncio.Event()
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="photonlite-realtime", daemon=True)
        self._thread.start()

    @property
    def question(self) -> Question:
        """What the next frame will be asked."""
        return self._state.question

    @property
    def stats(self) -> LoopStats:
        """How the loop does, at this moment."""
        return self._state.stats()

    @property
    def closed(self) -> bool:
        """Whether frames are refused."""
        return self._state.closed

    def submit(self, frame: Any, stamp: Any = None) -> int:
        """Hand in a frame. Never waits; the frame that waited for its turn is dropped.

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
        """Give the newest result with its age at this moment; None where there is none yet."""
        newest = self._board.newest
        return None if newest is None else self._handed_out(newest)

    def change(self, **changes: Any) -> None:
        """Ask something else from the next frame on, also of the one that waits.

        Args:
            **changes: `deadline_ms` and arguments of the task; the rest stays as it is. Where `task` is named, its
                arguments are those given here alone.

        Raises:
            InputError: As for a new loop; everything stays as it was.
            UnsupportedSkillError: The checkpoint was not trained for the task.
        """
        self._check_skill(self._state.question.changed(changes))
        self._state.change(changes)

    def close(self, *, drain: bool = True) -> None:
        """Take no more frames, and let iterators end. Closing twice is fine.

        Args:
            drain: Whether to wait for the frames that are there; else they are given up.
        """
        self._state.close(drain=drain)
        self._call(self._ending.set)
        if not drain:
            self._call(self._aborting.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __iter__(self) -> Results:
        return Results(self._board, self._handed_out)

    def __aiter__(self) -> Results:
        return Results(self._board, self._handed_out)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def _check_skill(self, question: Question) -> None:
        known = self._model.skills
        if question.task not in known:
            raise UnsupportedSkillError(
                f"the checkpoint was not trained for {question.task}: choose one of {', '.join(known)}"
            )

    def _handed_out(self, result: FrameResult) -> FrameResult:
        return dataclasses.replace(result, age_s=self._state.age(result))

    def _call(self, work: Callable[[], None]) -> None:
        """Have something done on the loop's own thread; nothing is left to do once that has ended."""
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
            self._board.close()
            self._events.close()

    async def _serve(self) -> None:
        await self._ending.wait()
        settled = asyncio.create_task(self._driver.settle())
        aborted = asyncio.create_task(self._aborting.wait())
        await asyncio.wait((settled, aborted), return_when=asyncio.FIRST_COMPLETED)
        if not settled.done():
            await self._driver.stop()
        aborted.cancel()
        await asyncio.wait((settled, aborted))

    async def _answer(self, job: Job) -> Mapping[str, Any]:
        question = job.question
        ask = getattr(self._model, f"a{question.task}")
        answer: Mapping[str, Any] = await ask(
            job.frame.image, **question.arguments, deadline_s=job.deadline_s, realtime=True
        )
        return answer

    def _deliver(self, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, FrameResult):
                self._board.show(outcome)
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

"""Carries frames from the waiting place to the model and their outcomes back, on one event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from photonlite.errors import RequestCancelledError
from photonlite.realtime.outcomes import Job, Outcome
from photonlite.realtime.state import LoopState

Answer: TypeAlias = Callable[[Job], Awaitable[Mapping[str, Any]]]
"""Asks the model about one frame."""


class Driver:
    """Begins frames as soon as there is room for them. All methods belong to the event loop that is running.

    Args:
        state: Holds the frames.
        answer: Asks the model; whatever it raises is that frame's failure.
        deliver: Takes results and failures, one at a time; results come in the order of their frames.
    """

    def __init__(self, state: LoopState, answer: Answer, deliver: Callable[[Outcome], None]) -> None:
        self._state = state
        self._answer = answer
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Begin what can begin; to be called after every submission."""
        while (job := self._state.begin()) is not None:
            task = asyncio.create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, job))

    async def settle(self) -> None:
        """Wait until nothing is left to do; the waiting frame is asked about."""
        self.wake()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # what has just ended is delivered in between

    async def stop(self) -> None:
        """Give up what is in flight."""
        for task in self._tasks:
            task.cancel()
        await self.settle()

    async def _run(self, job: Job) -> None:
        outcome: Outcome | None
        try:
            result = await self._answer(job)
        except Exception as error:  # of one frame alone, whatever it is
            outcome = self._state.fail(job, error)
        else:
            outcome = self._state.finish(job, result)
        self._next(outcome)

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before its first step
            self._next(self._state.fail(job, RequestCancelledError("the real-time loop was closed")))

    def _next(self, outcome: Outcome | None) -> None:
        self.wake()
        if outcome is not None:
            # Behind the first step of the next frame, which then runs while the caller's code looks at this one.
            asyncio.get_running_loop().call_soon(self._deliver, outcome)

"""A request on its way, as its caller holds it; waited for by threads and by coroutines alike.

```
caller ──> Generation ──> Delivery <── engine (as the sequence's sink)
           dropped:          │
           cancels           ├─ future of the completion
                             └─ tokens, for streams
```

The engine knows the delivery only, so that nothing but its caller keeps a generation alive: when that one lets go of
it, as a loop does that leaves a stream early, the request is cancelled.
"""


import asyncio
import concurrent.futures
import copy
import os
import queue
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any

from photonlite.engine.delivery import Delivery
from photonlite.errors import PhotonliteError
from photonlite.images.pool import PreparedImage
from photonlite.request import Completion, Request, Token
from photonlite.results import Metrics


class Generation(Iterator[Token], AsyncIterator[Token]):
    """A request as its caller holds it: an iterator of tokens, and its completion. Dropping it cancels the request.

    All waiting ends at the deadline with `DeadlineError`, whatever the engine is doing. Cancelling a task that waits
    for it cancels the request, and so does whatever interrupts a thread that waits, such as Ctrl-C.

    Args:
        request: What is asked.
        deadline_s: Seconds from now after which the answer is worthless.
    """

    def __init__(self, request: Request, deadline_s: float | None = None) -> None:
        self._delivery = Delivery(request, deadline_s)
        finalizer = weakref.finalize(self, _drop, self._delivery, os.getpid())
        finalizer.atexit = False

    @property
    def image(self) -> PreparedImage | None:
        """What it is about, once prepared."""
        return self._delivery.image

    @property
    def delivery(self) -> Delivery:
        """What the engine knows of the request. It knows nothing of this generation: dropping that one cancels it."""
        return self._delivery

    def __next__(self) -> Token:
        tokens = self._delivery.tokens
        try:
            token = tokens.get(timeout=self._delivery.remaining)
        except queue.Empty:
            self._delivery.expire()
            token = tokens.get()
        except BaseException:
            self.cancel()
            raise
        if token is None:
            self._end_iteration()
            raise StopIteration
        return token

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Token:
        tokens = self._delivery.tokens
        while tokens.empty():
            rung, bell = _bell()
            self._delivery.bells.append(bell)
            if tokens.empty():  # what came before the bell was hung has not rung it
                await self._until(rung)
        token = tokens.get()
        if token is None:
            self._end_iteration()
            raise StopAsyncIteration
        return token

    def complete(self) -> Completion:
        """Wait for everything.

        Raises:
            PhotonliteError: Why there is no answer.
        """
        self.wait()
        return self._result()

    async def acomplete(self) -> Completion:
        """The same for coroutines."""
        await self.await_end()
        return self._result()

    def wait(self) -> None:
        """Wait for the end, whatever it is."""
        try:
            concurrent.futures.wait([self._delivery.future], self._delivery.remaining)
        except BaseException:
            self.cancel()
            raise
        if not self._delivery.future.done():
            self._delivery.expire()

    async def await_end(self) -> None:
        """The same for coroutines."""
        await self._await(self._delivery.future)

    async def await_start(self) -> None:
        """Wait until the request has been handed to the engine or has ended."""
        await self._await(self._delivery.started)

    async def _await(self, started: Future[Any]) -> None:
        rung, bell = _bell()
        started.add_done_callback(lambda _: bell())
        await self._until(rung)

    def check(self) -> None:
        """Raise the error with which the request has ended, if it has."""
        if self._delivery.future.done():
            self._result()

    def cancel(self) -> None:
        """Give the request up; one that has ended stays as it is."""
        self._delivery.cancel()

    close = cancel

    def outcome(self) -> tuple[Metrics, str | None]:
        """Wait for the end and give the metrics and the finish reason."""
        completion = self.complete()
        return completion.metrics, completion.finish_reason

    async def _until(self, rung: "asyncio.Future[None]") -> None:
        try:
            await asyncio.wait([rung], timeout=self._delivery.remaining)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if not rung.done():
            self._delivery.expire()

    def _end_iteration(self) -> None:
        self._delivery.tokens.put(None)  # for whoever asks again
        self._result()

    def _result(self) -> Completion:
        """Give the completion of a request that has ended, or raise its error.

        One error may end many requests, and be asked for more than once: everybody raises a copy, so that tracebacks
        neither grow nor keep anything alive.
        """
        error = self._delivery.future.exception()
        if isinstance(error, PhotonliteError):
            raise _copied(error)  # no name for it: a frame that knows its own exception is a cycle
        return self._delivery.future.result()


def _drop(delivery: Delivery, process: int) -> None:
    """Cancel a request that nobody holds any more; not in a forked process, where its locks may be held for ever."""
    if os.getpid() == process:
        delivery.cancel()


def _copied(error: PhotonliteError) -> PhotonliteError:
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def _bell() -> "tuple[asyncio.Future[None], Callable[[], None]]":
    """Make a future of the running loop, and what completes it from any thread."""
    loop = asyncio.get_running_loop()
    rung: asyncio.Future[None] = loop.create_future()

    def ring() -> None:
        try:
            loop.call_soon_threadsafe(_complete, rung)
        except RuntimeError:
            return  # the loop has been closed, and nobody waits any more

    return rung, ring


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)

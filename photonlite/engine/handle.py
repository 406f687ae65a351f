"""The caller's side of one request: a `RequestHandle`, waited for by threads and coroutines alike.

```
caller ──> RequestHandle <── engine (as the sink of its `Sequence`)
             ├─ future      the completion, or why there is none; the first end counts
             ├─ submitted   done when the engine has the request, or it has ended
             └─ tokens      read through a TokenStream, which cancels the request when it is dropped
```

All waiting ends at the deadline with `DeadlineError`, whatever the engine is doing. Interrupting a thread that waits,
by Ctrl-C for example, cancels the request, and so does cancelling a task that waits.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError
from dataclasses import replace
from typing import Any

from photonlite.engine.faults import copied, told, without_frames
from photonlite.errors import DeadlineError, PhotonliteError, RequestCancelledError, TruncatedError
from photonlite.images.pool import PreparedImage
from photonlite.request import Completion, Request, Token
from photonlite.results import Metrics
from photonlite.sequence import Sequence

_LONGEST_WAIT = 1e8
"""Seconds, three years: locks cannot wait for longer, but deadlines may be further away."""


class RequestHandle:
    """One request from the call to its end, from any thread: a `photonlite.sequence.Sink`."""

    def __init__(
        self,
        request: Request,
        deadline_s: float | None = None,
        on_end: "Callable[[RequestHandle], None] | None" = None,
    ) -> None:
        self.request = request
        self.deadline_s = deadline_s  # from `begun`; the answer is worthless after it
        self.begun = time.perf_counter()
        self.images: tuple[PreparedImage, ...] = ()
        self.preprocess_s = 0.0  # seconds that preparing the images took for this request
        self.encode_s = 0.0  # seconds of the image encoder before the request was submitted
        self.future: Future[Completion] = Future()
        self.submitted: Future[None] = Future()
        self.in_engine = False
        self.thread: int | None = None  # that runs the steps which lead to the engine, while it does
        self.tokens: queue.SimpleQueue[Token | None] = queue.SimpleQueue()  # None is the end
        self.bells: deque[Callable[[], None]] = deque()  # each is rung once, at the next token or the end
        self._on_end = on_end  # called once
        self._releases: deque[Callable[[], object]] = deque()
        self._prepared_s = 0.0  # all that the images had cost when they were prepared, for other requests too
        self._cancel_sequence: Callable[[], None] | None = None

    @property
    def image(self) -> PreparedImage | None:
        """The image that a result's places are in: the last one, nearest to the question."""
        return self.images[-1] if self.images else None

    @property
    def picture_size(self) -> tuple[int, int] | None:
        return None if self.image is None else self.image.size

    @property
    def remaining(self) -> float | None:
        """Seconds to the deadline, at least 0 and no more than can be waited for; None without a deadline."""
        if self.deadline_s is None:
            return None
        return min(_LONGEST_WAIT, max(0.0, self.begun + self.deadline_s - time.perf_counter()))

    def ended(self) -> bool:
        """Whether the request has ended; a deadline that has passed ends it."""
        if self.remaining == 0:
            self.expire()
        return self.future.done()

    def check(self) -> None:
        """Raise `DeadlineError` or `RequestCancelledError` if the request has ended: work on it is in vain."""
        if self.ended():
            raise self.future.exception() or RequestCancelledError("the request has ended")

    # ---- on its way to the engine

    def prepare(self, prepare: Callable[[], PreparedImage]) -> None:
        self.check()
        start = time.perf_counter()
        image = prepare()
        self.images = (*self.images, image)
        self.preprocess_s += time.perf_counter() - start
        self._prepared_s += image.preprocess_s

    def ask(self, request: Request) -> None:
        """Put the request that could only be made now in the place of the one of the call, whose options it takes."""
        names = ("cache_salt", "realtime", "strict", "adapter")
        self.request = replace(request, **{name: getattr(self.request, name) for name in names})

    def attach(self, cancel_sequence: Callable[[], None]) -> None:
        """Note that the engine has the request, and how to cancel it there."""
        self._cancel_sequence = cancel_sequence
        if self.future.done():  # it ended while it was submitted
            self._tell_engine()
        _settle(self.submitted)

    def when_computed(self, release: Callable[[], object]) -> None:
        """Call `release` at the first token or the end, when the engine needs the image's pixels no longer."""
        self._releases.append(release)
        if self.future.done():
            self.release()

    def release(self) -> None:
        _call_all(self._releases)

    def follow_up(self, request: Request, image: PreparedImage | None = None) -> "RequestHandle":
        """Make a handle for a further request of the same caller, which ends with this one.

        It is about the same images, or another one, which has cost nothing yet.
        """
        own = self.request
        request = replace(request, cache_salt=own.cache_salt, realtime=own.realtime, adapter=own.adapter)
        child = RequestHandle(request, self.deadline_s)
        child.begun, child.images = self.begun, self.images if image is None else (image,)
        if child.images == self.images:
            child.preprocess_s, child._prepared_s = self.preprocess_s, self._prepared_s
        self.future.add_done_callback(lambda _: child.cancel())
        return child

    # ---- called by the engine

    def on_token(self, token: Token) -> None:
        self.tokens.put(token)
        if self._releases:
            self.release()
        _call_all(self.bells)

    def on_finish(self, sequence: Sequence) -> None:
        self._cancel_sequence = None
        if sequence.error is not None:
            self._end(sequence.error)
            return
        try:
            reason = sequence.request.grammar.finish_reason
            self.finish(Completion(tuple(sequence.tokens), reason, self._metrics(sequence), self.picture_size))
        except Exception as error:  # a grammar is a plug-in, and nothing may be raised on the engine thread
            self.fail(error)

    # ---- ends

    def finish(self, completion: Completion) -> None:
        """End the request with its completion; a strict one that was cut short fails."""
        try:
            self.request.check(completion.finish_reason)
        except TruncatedError as error:
            self._end(error.with_traceback(None))
        else:
            self._end(completion)

    def fail(self, error: BaseException) -> None:
        error = told(error)
        if isinstance(error, PhotonliteError):
            # Tracebacks, its causes' too, would keep the engine alive as long as the error.
            if error.__cause__ is not None:
                without_frames(error.__cause__)
            error = error.with_traceback(None)
        self._end(error)

    def guard(self, action: Callable[[], object]) -> None:
        """Call `action` on a thread that it must not disturb: what it raises ends the request."""
        try:
            action()
        except BaseException as error:
            self.fail(error)

    def cancel(self) -> None:
        """End the request, wherever it is; one that has ended stays as it is."""
        self._end(RequestCancelledError("the request was cancelled"))
        self._tell_engine()

    def expire(self) -> None:
        """End the request because its deadline has passed; the engine finds out by itself."""
        self._end(DeadlineError(f"the answer was not complete within {self.deadline_s:g} s: raise deadline_s"))

    def _end(self, outcome: Completion | BaseException) -> None:
        try:
            if isinstance(outcome, Completion):
                self.future.set_result(outcome)
            else:
                self.future.set_exception(outcome)
        except InvalidStateError:
            return
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)
        self.tokens.put(None)
        self.release()
        _call_all(self.bells)
        _settle(self.submitted)

    def _tell_engine(self) -> None:
        cancel, self._cancel_sequence = self._cancel_sequence, None
        if cancel is not None:
            cancel()

    # ---- waiting

    def wait(self, future: "Future[Any] | None" = None) -> None:
        futures: list[Future[Any]] = [self.future] if future is None else [self.future, future]
        try:
            concurrent.futures.wait(futures, self.remaining, FIRST_COMPLETED)
        except BaseException:
            self.cancel()
            raise
        if not any(one.done() for one in futures):
            self.expire()

    async def wait_async(self, future: "Future[Any] | None" = None) -> None:
        """Await the end, or `future`, which is done at the end at the latest."""
        rung, ring = _bell()
        (future or self.future).add_done_callback(lambda _: ring())
        await self.await_bell(rung)

    async def await_bell(self, rung: "asyncio.Future[None]") -> None:
        """Await a bell, at most until the deadline, which ends the request."""
        try:
            await asyncio.wait([rung], timeout=self.remaining)
        except BaseException:  # GeneratorExit too: the task was dropped
            self.cancel()
            raise
        if not rung.done():
            self.expire()

    def result(self) -> Completion:
        """Wait for the completion, or raise why there is none.

        One error may end many requests: copies are raised, so that tracebacks neither grow nor keep anything alive.
        """
        if not self.future.done():
            self.wait()
        error = self.future.exception()
        if isinstance(error, PhotonliteError):
            raise copied(error)  # a frame with a name for its own exception is a cycle
        return self.future.result()

    def raise_error(self) -> None:
        """Raise why there is no answer, if that is known; one that was cut short is there, up to its limit."""
        if self.future.done() and not isinstance(self.future.exception(), TruncatedError):
            self.result()

    def outcome(self) -> tuple[Metrics, str | None]:
        completion = self.result()
        return completion.metrics, completion.finish_reason

    @property
    def cutting_s(self) -> float:
        """Seconds that cutting the images into crops has taken since they were prepared."""
        return sum(image.preprocess_s for image in dict.fromkeys(self.images)) - self._prepared_s

    def _metrics(self, sequence: Sequence) -> Metrics:
        times = sequence.times
        return Metrics(
            preprocess_s=self.preprocess_s + self.cutting_s,
            encode_s=self.encode_s + times.encode_s,
            prefill_s=times.prefill_s,
            decode_s=times.finished - times.first_token if times.first_token else 0.0,
            prompt_tokens=sequence.prompt_length,
            output_tokens=len(sequence.tokens),
            time_to_first_token_s=times.first_token - times.submitted if times.first_token else 0.0,
            queue_s=times.queue_s,
        )


class TokenStream(Iterator[Token], AsyncIterator[Token]):
    """A request's tokens as they come. Closing or dropping the stream cancels the request.

    The engine knows the handle only, so nothing but its reader keeps a stream alive.
    """

    def __init__(self, handle: RequestHandle) -> None:
        self._handle = handle
        self._ended = False  # tokens that the engine gives after the end are dropped
        weakref.finalize(self, _cancel_dropped, handle, os.getpid()).atexit = False

    def __next__(self) -> Token:
        handle = self._handle
        try:
            token = handle.tokens.get(timeout=handle.remaining)
        except queue.Empty:
            handle.expire()
            token = handle.tokens.get()
        except BaseException:
            handle.cancel()
            raise
        if token is None or self._ended:
            self._end()
            raise StopIteration
        return token

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Token:
        handle = self._handle
        while handle.tokens.empty():
            rung, ring = _bell()
            handle.bells.append(ring)
            if handle.tokens.empty():  # a token that came before the bell was hung has not rung it
                await handle.await_bell(rung)
        token = handle.tokens.get()
        if token is None or self._ended:
            self._end()
            raise StopAsyncIteration
        return token

    def close(self) -> None:
        """Cancel the request; a thread that waits for a token is told."""
        self._handle.cancel()

    def _end(self) -> None:
        self._ended = True
        self._handle.tokens.put(None)  # for the next call, and other readers
        self._handle.result()


def _cancel_dropped(handle: RequestHandle, process: int) -> None:
    if os.getpid() == process:  # a forked process may find the handle's locks held and never released
        handle.cancel()


def _bell() -> "tuple[asyncio.Future[None], Callable[[], None]]":
    """Return a future of the running event loop, and what completes it from any thread."""
    loop = asyncio.get_running_loop()
    rung: asyncio.Future[None] = loop.create_future()

    def ring() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_complete, rung)

    return rung, ring


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _call_all(actions: "deque[Callable[[], object]] | deque[Callable[[], None]]") -> None:
    """Call each action once, also where several threads do this at a time."""
    for _ in range(len(actions)):
        try:
            action = actions.popleft()
        except IndexError:
            return
        action()


def _settle(future: "Future[None]") -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_result(None)

"""What happens to one request, from its image to its end, whichever thread it happens on."""

import contextlib
import dataclasses
import queue
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Protocol

from photonlite.engine.faults import told, without_frames
from photonlite.engine.sequel import Further, Sequel
from photonlite.errors import DeadlineError, PhotonliteError, RequestCancelledError, TruncatedError
from photonlite.images.pool import PreparedImage
from photonlite.request import Completion, Request, Token
from photonlite.results import Metrics
from photonlite.sequence import ImageRef, Sequence, Sink

_LONGEST_WAIT = 1e8
"""Seconds, three years: a deadline may lie further off than a lock can wait."""


class Submitter(Protocol):
    """What is used of an engine; see :class:`photonlite.engine.engine.Engine`."""

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
        """Hand a request in."""
        ...

    def cancel(self, sequence: Sequence) -> None:
        """Give it up."""
        ...


class Delivery:
    """Takes what happens to one request, from whichever thread: a `photonlite.sequence.Sink`. The first end counts.

    Args:
        request: What is asked.
        deadline_s: Seconds from now after which the answer is worthless.

    Attributes:
        future: Of the completion.
        tokens: What a stream has not taken yet; None stands for the end.
        bells: Each is rung once when the next token or the end is there.
        image: What it is about, once prepared.
        request: As given.
        started: Done when the request has been handed in, or has ended.
        handed_in: Whether the engine has got it.
        on_end: Is told of the end, once.
        further: Tells what else has to be asked before the answer is whole; None for nothing.
        encoded_s: Seconds of the image encoder that were spent on its behalf before it was handed in.
    """

    def __init__(self, request: Request, deadline_s: float | None) -> None:
        self.future: Future[Completion] = Future()
        self.tokens: queue.SimpleQueue[Token | None] = queue.SimpleQueue()
        self.bells: deque[Callable[[], None]] = deque()
        self.image: PreparedImage | None = None
        self.request = request
        self.started: Future[None] = Future()
        self.handed_in = False
        self.on_end: Callable[[Delivery], None] | None = None
        self.further: Further | None = None
        self.encoded_s = 0.0
        self._sequel: Sequel | None = None
        self._computed: deque[Callable[[], None]] = deque()
        self._begun = time.perf_counter()
        self._deadline_s = deadline_s
        self._prepared = (0.0, 0.0)  # seconds that this request's preparation took; all that its image has cost then
        self._stop: Callable[[], None] | None = None

    @property
    def remaining(self) -> float | None:
        """Seconds to the deadline, at least 0 and no more than can be waited for; None where there is none."""
        if self._deadline_s is None:
            return None
        return min(_LONGEST_WAIT, max(0.0, self._begun + self._deadline_s - time.perf_counter()))

    def submit(self, engine: Submitter, prepare: Callable[[], PreparedImage | None]) -> None:
        """Prepare the image on this thread and hand the request in; what goes wrong ends the request.

        Args:
            engine: Takes it.
            prepare: Gives the image; not called if the request has ended already.
        """
        if self.prepare(prepare):
            self.hand_in(engine)

    def prepare(self, prepare: Callable[[], PreparedImage | None]) -> bool:
        """Prepare the image on this thread; tells whether the request goes on."""
        if self.has_ended():
            return False
        try:
            start = time.perf_counter()
            self.image = image = prepare()
            seconds = time.perf_counter() - start if image is not None else 0.0
            self._prepared = (seconds, 0.0 if image is None else image.preprocess_s)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        return not self.has_ended()

    def hand_in(self, engine: Submitter, bind: Callable[[], Request] | None = None) -> None:
        """Hand the request in with the image that was prepared; what goes wrong ends the request.

        Args:
            engine: Takes it.
            bind: Gives the whole request, where the one so far has no grammar.
        """
        if self.has_ended():
            return
        try:
            if bind is not None:
                self.request = bind()
            if self.has_ended():
                return
            self.handed_in = True
            if self.further is not None:  # before the engine has it: the end may come at any moment after that
                self._sequel = Sequel(self.further, partial(self.submit_beside, engine), engine.cancel, self._conclude)
            sequence = self._submit(engine, self.request, self, self._prepared[0])
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._stop = partial(engine.cancel, sequence)
            if self.future.done():  # it was cancelled while it was handed in
                self._tell_engine()
        finally:
            _settle(self.started)

    def guard(self, action: Callable[[], object]) -> None:
        """Do something that must not disturb the thread it is done on: what goes wrong ends the request."""
        try:
            action()
        except BaseException as error:
            self._fail(error)

    def has_ended(self) -> bool:
        """Tell whether the request has ended; its deadline, if it has passed, ends it."""
        if self.remaining == 0:
            self.expire()
        return self.future.done()

    def check(self) -> None:
        """End work that is done for the request, if that has ended.

        Raises:
            DeadlineError: Its deadline has passed.
            RequestCancelledError: It was given up.
        """
        if self.has_ended():
            raise self.future.exception() or RequestCancelledError("the request has ended")

    def when_computed(self, action: Callable[[], None]) -> None:
        """Have something done when the first token or the end is there: the engine has no use for the pixels now."""
        self._computed.append(action)
        if self.future.done():
            _ring(self._computed)

    def cancel(self) -> None:
        """Give the request up, wherever it is."""
        self._end(RequestCancelledError("the request was cancelled"))
        self._tell_engine()

    def expire(self) -> None:
        """End the request because its deadline has passed; the engine finds out by itself."""
        self._end(DeadlineError(f"the answer was not complete within {self._deadline_s:g} s: raise deadline_s"))

    def on_token(self, token: Token) -> None:
        """Take a token from the engine."""
        self.tokens.put(token)
        if self._computed:
            _ring(self._computed)
        _ring(self.bells)

    def on_finish(self, sequence: Sequence) -> None:
        """Take the end from the engine."""
        self._stop = None
        if sequence.error is not None:
            self._end(sequence.error)
            return
        try:
            reason = sequence.request.grammar.finish_reason
            size = None if self.image is None else self.image.size
            completion = Completion(tuple(sequence.tokens), reason, self._metrics(sequence), size)
            sequel = self._sequel  # another thread may end the request meanwhile, and take it away
            if sequel is None:
                self._end(completion)
            else:
                sequel.begin(completion)
        except Exception as error:  # a grammar is a plug-in; nothing may be thrown at the engine thread
            self._fail(error)

    def submit_beside(self, engine: Submitter, request: Request, sink: Sink) -> Sequence:
        """Hand another request in on behalf of this one: same image, tenant, class and deadline."""
        request = dataclasses.replace(request, cache_salt=self.request.cache_salt, realtime=self.request.realtime)
        return self._submit(engine, request, sink)

    def _submit(self, engine: Submitter, request: Request, sink: Sink, preprocess_s: float = 0.0) -> Sequence:
        return engine.submit(
            request,
            sink,
            self.image,
            deadline_s=self._deadline_s,
            preprocess_s=preprocess_s,
            submitted=self._begun,
        )

    def _end(self, outcome: Completion | BaseException) -> None:
        try:
            if isinstance(outcome, Completion):
                self.request.check(outcome.finish_reason)
                self.future.set_result(outcome)
            else:
                self.future.set_exception(outcome)
        except InvalidStateError:
            return
        except TruncatedError as error:
            self._end(error.with_traceback(None))
            return
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(self)
        self._drop_sequel()
        self.tokens.put(None)
        _ring(self._computed)
        _ring(self.bells)
        _settle(self.started)

    def _conclude(self, outcome: Completion | BaseException) -> None:
        """Take what became of the requests that followed."""
        if isinstance(outcome, Completion):
            self._end(outcome)
        else:
            self._fail(outcome)

    def _fail(self, error: BaseException) -> None:
        """End the request with an error; whoever waits is told by nobody else."""
        error = told(error)
        if isinstance(error, PhotonliteError):
            # Its message says it all, and a traceback would keep the engine alive for as long as somebody has it; so
            # would those of its causes.
            if error.__cause__ is not None:
                without_frames(error.__cause__)
            error = error.with_traceback(None)
        self._end(error)

    def _tell_engine(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        self._drop_sequel()

    def _drop_sequel(self) -> None:
        """Give up what follows, if it has not ended, and forget it: it knows the engine, and this delivery."""
        sequel, self._sequel = self._sequel, None
        if sequel is not None:
            sequel.cancel()

    def _metrics(self, sequence: Sequence) -> Metrics:
        times = sequence.times
        preparing, before = self._prepared
        cutting = 0.0 if self.image is None else self.image.preprocess_s - before
        return Metrics(
            preprocess_s=preparing + cutting,
            encode_s=self.encoded_s + times.encode_s,
            prefill_s=times.prefill_s,
            decode_s=times.finished - times.first_token if times.first_token else 0.0,
            prompt_tokens=sequence.prompt_length,
            output_tokens=len(sequence.tokens),
            time_to_first_token_s=times.first_token - times.submitted if times.first_token else 0.0,
            queue_s=times.queue_s,
        )


def _ring(bells: deque[Callable[[], None]]) -> None:
    for _ in range(len(bells)):
        try:
            bell = bells.popleft()
        except IndexError:
            return  # another thread has just rung the last one
        bell()


def _settle(started: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):
        started.set_result(None)

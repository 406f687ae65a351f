"""What has to be asked after a request has ended, before its answer is whole: further requests about the same image.

```
request ──> completion ──further──> requests ──> completions ──further──> requests ...   until there are no more
                                                                                └──> the first completion goes out
```

All of it happens on the engine thread, but for `cancel`.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from photonlite.request import Completion, Request, Token
from photonlite.results import Metrics
from photonlite.sequence import Sequence, Sink

Further: TypeAlias = Callable[[Any, Completion], Iterable[tuple[Any, Request]]]
"""Is told of a completion, and by which name its request goes: None for the first. Gives further requests by name."""


class Sequel:
    """The requests that follow one request.

    Args:
        further: Tells which.
        submit: Hands one in.
        cancel: Gives one up.
        end: Takes the first completion when all have ended, or what went wrong.
    """

    def __init__(
        self,
        further: Further,
        submit: Callable[[Request, Sink], Sequence],
        cancel: Callable[[Sequence], None],
        end: Callable[[Completion | BaseException], None],
    ) -> None:
        self._further = further
        self._submit = submit
        self._cancel = cancel
        self._end = end
        self._first: Completion | None = None
        self._waiting = 0
        self._sequences: dict[Sequence, None] = {}  # that have not ended, in order
        self._given_up = False

    def begin(self, completion: Completion) -> None:
        """Take the completion that all others follow."""
        self._first = completion
        self.take(None, completion)

    def take(self, name: Any, completion: Completion) -> None:
        """Take one of them; what goes wrong in `further` is raised."""
        requests = list(self._further(name, completion))
        self._waiting += len(requests)
        for known, request in requests:
            if self._given_up:
                break
            self._sequences[self._submit(request, _Branch(self, known))] = None
        if self._given_up:
            self.cancel()  # by another thread, which may not have seen the newest ones
        elif self._waiting == 0 and self._first is not None:
            self._end(self._first)

    def ended(self, name: Any, sequence: Sequence) -> None:
        """Take the end of one that follows; errors end the whole."""
        self._waiting -= 1
        self._sequences.pop(sequence, None)  # which knows this sequel, and with it the engine
        if sequence.error is not None:
            self._fail(sequence.error)
            return
        try:
            completion = Completion(tuple(sequence.tokens), sequence.request.grammar.finish_reason, Metrics())
            if self._first is not None:
                self._first = _with_costs(self._first, sequence)
            self.take(name, completion)
        except Exception as error:
            self._fail(error)

    def cancel(self) -> None:
        """Give up what follows; from any thread."""
        self._given_up = True
        for sequence in list(self._sequences):
            self._cancel(sequence)

    def _fail(self, error: BaseException) -> None:
        self._end(error)
        self.cancel()


class _Branch:
    """Takes what happens to one of them."""

    def __init__(self, sequel: Sequel, name: Any) -> None:
        self._sequel = sequel
        self._name = name

    def on_token(self, token: Token) -> None:
        """Take a token: the sequence has it too."""

    def on_finish(self, sequence: Sequence) -> None:
        """Take the end."""
        self._sequel.ended(self._name, sequence)


def _with_costs(completion: Completion, sequence: Sequence) -> Completion:
    """Add what a further request took to the metrics of the first: some of it at the same time as others."""
    metrics, times = completion.metrics, sequence.times
    decoded = times.finished - times.first_token if times.first_token else 0.0
    costs = dataclasses.replace(
        metrics,
        encode_s=metrics.encode_s + times.encode_s,
        prefill_s=metrics.prefill_s + times.prefill_s,
        decode_s=metrics.decode_s + decoded,
        output_tokens=metrics.output_tokens + len(sequence.tokens),
    )
    return dataclasses.replace(completion, metrics=costs)

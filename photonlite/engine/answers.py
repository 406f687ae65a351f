"""Answers, token by token: what grammars allow in a step, and what becomes of the tokens that come. No torch.

```
finalize   read_allowed ── what may stand at each row's next position ──> the step's masks
commit     a row's token ──> Sequence.accept ──> the grammar advances, the sink gets it
                                                 └ a run that must follow: appended at once, where that saves time
```

Grammars and sinks are plug-ins: what one raises ends its request alone.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from photonlite.batch import Step
from photonlite.observe.metrics import EngineMetrics
from photonlite.request import Allowed, Token, checked_run
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

Outcomes: TypeAlias = list[Token | Exception | None]


class Answers:
    """Advances the answers of running sequences; `end` ends a request, with an error or without."""

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: EngineMetrics,
        clock: Callable[[], float],
        end: Callable[[Sequence, BaseException | None], None],
    ) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._end = end

    def read_allowed(self, step: Step, *, ahead: bool = False) -> list[Allowed | None] | None:
        """Return what may stand at each row's next position, None where no token is wanted.

        With `ahead`, steps in flight may still carry the rows: returns None where a mask depends on their tokens.
        """
        found: list[Allowed | None] = []
        failed: list[tuple[Sequence, Exception]] = []
        for row in step.rows:
            sequence, index = row.sequence, row.index
            if sequence.finalized or index is None or sequence in step.dropped:
                found.append(None)
                continue
            if index < len(sequence.tokens):  # part of a run by now: the next step may read it from the device
                found.append(Allowed((sequence.tokens[index].id,)))
                continue
            grammar, outstanding = sequence.grammar, index - len(sequence.tokens)
            knows = outstanding == 1 and sequence.repetition_penalty == 1  # a penalty counts every token before
            try:
                allowed = grammar.allowed if outstanding == 0 else grammar.ahead if knows else None
                if isinstance(allowed, Allowed):
                    found.append(allowed)
                    continue
                error: Exception = TypeError(f"a grammar allows {allowed!r:.60} {outstanding} tokens ahead")
            except Exception as fault:  # a grammar is a plug-in
                error = fault
            if ahead and outstanding:
                return None  # what is wrong with the grammar comes out where its mask is needed
            failed.append((sequence, error))
            found.append(None)
        for sequence, error in failed:
            self._end(sequence, error)
        return found

    def commit_rows(self, step: Step, outcomes: Outcomes, newest: Step) -> None:
        """Append the tokens of a step, and the runs that must follow them; end the rows that failed.

        The newest launched step may have assumed what follows: rows of it that were wrong are dropped.
        """
        now, zombies, tokens = self._clock(), 0, 0
        runs: list[tuple[Sequence, tuple[int, ...]]] = []
        gaps: dict[float, int] = {}  # how many seconds after the one before; few differ, as most were in one step
        for row, outcome in zip(step.rows, outcomes, strict=True):
            sequence = row.sequence
            sequence.release()
            if sequence.finalized or (sequence in step.dropped and step.failure is None):
                zombies += 1
            elif not row.is_void:
                if not row.pending and not sequence.num_committed_tokens:
                    sequence.times.prefill_s += step.device_s
                if outcome is None and (row.cut or step.plan.beside):
                    if sequence.num_committed_tokens:
                        sequence.num_committed_tokens = row.start + row.count
                elif not isinstance(outcome, Token):
                    self._end(sequence, outcome)  # it failed, or asked for no token
                else:
                    sequence.num_committed_tokens = row.start + row.count
                    if row.index == len(sequence.tokens):  # else it was known before: part of a run
                        tokens += 1
                        if last := sequence.times.last_token:
                            gaps[now - last] = gaps.get(now - last, 0) + 1
                        self._accept(sequence, (outcome,), now)
                        run = self._read_run(sequence)
                        if sequence.assumed:
                            self._confirm(sequence, run, newest, now)
                        elif run and not sequence.preempting:
                            runs.append((sequence, run))
            if sequence.finalized or sequence.preempting:
                self._scheduler.release_if_unused(sequence)
        self._take_runs(runs, now)
        self._metrics.zombie_rows += zombies
        self._metrics.tokens += tokens
        for gap, count in gaps.items():
            self._metrics.token_s.observe(gap, count)

    def _accept(self, sequence: Sequence, tokens: Iterable[Token], now: float) -> None:
        try:
            for token in tokens:
                if sequence.accept(token, now):
                    if sequence.num_committed_tokens:
                        self._end(sequence, None)
                    else:
                        sequence.answered = True
                    return
                if sequence.finalized:
                    return
            if self._scheduler.limits.forced_runs:
                sequence.expected_run = checked_run(sequence.grammar.expected_run, self._scheduler.limits.vocab_size)
        except Exception as error:  # grammar and sink are plug-ins: their faults end their request alone
            self._end(sequence, error)

    def _read_run(self, sequence: Sequence) -> tuple[int, ...]:
        """Return what must follow in a sequence; nothing where that is not known or of no use."""
        if not self._scheduler.limits.forced_runs or sequence.finalized:
            return ()
        try:
            return checked_run(sequence.grammar.run, self._scheduler.limits.vocab_size)
        except Exception as error:  # a grammar is a plug-in
            self._end(sequence, error)
            return ()

    def _confirm(self, sequence: Sequence, run: tuple[int, ...], newest: Step, now: float) -> None:
        """Append what a launched step computes behind a token that has come, or drop its row there.

        The device then has no input for the next position: the token is computed again from the host, with all that
        must follow it.
        """
        assumed, sequence.assumed = sequence.assumed, ()
        if run[: len(assumed)] == assumed:
            run = assumed
        elif not sequence.finalized:
            newest.dropped.add(sequence)
            sequence.num_computed_tokens, sequence.cut = sequence.num_committed_tokens, True
        self._append(sequence, run, now)

    def take_opening(self, sequence: Sequence) -> None:
        """Append what an answer must begin with: its keys and values are computed with the prompt's.

        The sink gets it when these are there: its first token says that the images are no longer needed. An answer
        without any choice ends when its images are ready, or with what is wrong with them, and needs no prompt.
        """
        if sequence.samples and (run := self._read_run(sequence)):
            self._append(sequence, run, self._clock())

    def _take_runs(self, runs: list[tuple[Sequence, tuple[int, ...]]], now: float) -> None:
        """Append runs where the policy chooses to: their keys and values are computed in one launch."""
        for sequence, run in self._scheduler.choose_runs(runs):
            self._append(sequence, run, now)

    def _append(self, sequence: Sequence, run: tuple[int, ...], now: float) -> None:
        before = len(sequence.tokens)
        if not sequence.finalized:
            self._accept(sequence, map(Token, run), now)
        appended = len(sequence.tokens) - before
        self._metrics.tokens += appended
        self._metrics.forced_tokens += appended

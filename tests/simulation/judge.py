"""How requests may end: every error has a cause known to the simulation, and every result is complete."""

from collections import Counter

from photonlite.batch import Step
from photonlite.errors import (
    DeadlineError,
    EngineDiedError,
    NumericalError,
    OutOfMemoryError,
    RequestCancelledError,
    StepError,
)
from photonlite.sequence import Sequence
from tests.simulation.body import Violation
from tests.simulation.grammar import FaultyGrammar, GrammarFault
from tests.simulation.oracle import Oracle


class ImageFailure(Exception):  # noqa: N818 - what comes of a broken file
    """An image cannot be cut."""


class AdapterFailure(Exception):  # noqa: N818 - what comes of files that are gone
    """An adapter cannot be loaded."""


class Judge:
    """Records what was done to sequences, and compares it with how they end.

    Attributes:
        cancelled: Numbers of sequences that were cancelled before their ends.
        spoiled: For sequences whose numbers turned into NaNs, the first token that this may have spoiled.
    """

    def __init__(self) -> None:
        self.cancelled: set[int] = set()
        self.spoiled: dict[int, int] = {}
        self._struck: set[int] = set()
        self._struck_keys: Counter[str] = Counter()

    def strike(self, step: Step) -> None:
        """Note that a step has been made to fail."""
        self._struck.update(row.sequence.number for row in step.rows)
        self._struck_keys.update(group.job.key for group in step.plan.groups)

    def judge(self, sequence: Sequence, oracle: Oracle, now: int, *, dying: bool) -> None:
        """Check that a sequence had a reason to end as it did.

        Args:
            sequence: Just ended.
            oracle: Its own; it has said what the sequence gave out.
            now: The time.
            dying: Whether the device fails for good.

        Raises:
            Violation: It had none.
        """
        error = sequence.error
        if oracle.said != (len(sequence.tokens) if error is None else sequence.num_handed_out):
            raise Violation(f"{sequence.number} has {len(sequence.tokens)} tokens, but gave out {oracle.said}")
        if untold := [token for token in sequence.tokens[oracle.said :] if token != oracle.next()]:
            raise Violation(f"{sequence.number} begins with {untold}, which the oracle does not")
        if error is None:
            self._check_result(sequence, oracle)
        elif not (dying and isinstance(error, EngineDiedError)) and not self._deserves(sequence, oracle, error, now):
            raise Violation(f"{sequence.number} ends for no reason with {error!r}") from error

    def _check_result(self, sequence: Sequence, oracle: Oracle) -> None:
        number, count = sequence.number, len(sequence.tokens)
        if sequence.samples and oracle.grammar.finish_reason is None:
            raise Violation(f"{number} ends after {count} tokens, but more must follow")
        if sequence.samples and sequence.grammar.finish_reason != oracle.grammar.finish_reason:
            raise Violation(f"{number} ends with another reason than {oracle.grammar.finish_reason}")
        if number in self.cancelled:
            raise Violation(f"{number} has a result, though it was cancelled before")
        if self.spoiled.get(number, count) < count:
            raise Violation(f"{number} has a result made of NaNs")

    def _deserves(self, sequence: Sequence, oracle: Oracle, error: BaseException, now: int) -> bool:
        number, images = sequence.number, sequence.images
        if isinstance(error, RequestCancelledError):
            return number in self.cancelled
        if isinstance(error, DeadlineError):
            hopeless = sequence.realtime and not sequence.times.admitted
            return sequence.deadline is not None and (sequence.deadline <= now or hopeless)
        if isinstance(error, NumericalError):
            return number in self.spoiled
        if isinstance(error, ImageFailure):
            return any(span.image.failure is error for span in images)
        if isinstance(error, AdapterFailure):
            return bool(sequence.adapter_key) and sequence.adapter_key in str(error)
        if isinstance(error, StepError | OutOfMemoryError):
            return number in self._struck or any(self._pays(span.key) for span in images)
        if isinstance(oracle.grammar, FaultyGrammar) and oracle.grammar.misleads:
            return isinstance(error, GrammarFault | ValueError | TypeError)
        if isinstance(error, GrammarFault | ValueError):
            return _breaks(oracle, type(error))
        return False

    def _pays(self, key: str) -> bool:
        """Whether an encode step of an image has failed that has not yet ended a sequence: it ends one."""
        pays = self._struck_keys[key] > 0
        self._struck_keys[key] -= pays
        return pays


def _breaks(oracle: Oracle, error: type[BaseException]) -> bool:
    try:
        oracle.next()
    except error:
        return True
    return False

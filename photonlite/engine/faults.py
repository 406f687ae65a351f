"""What goes wrong inside: failed steps, shortages of memory, and errors that can be kept and shown to callers."""

import copy
import errno
import logging
import traceback
from typing import TypeVar

from photonlite.batch import ScheduledBatch, Step
from photonlite.errors import EngineDiedError, EngineError, OutOfMemoryError, PhotonliteError, StepError
from photonlite.sequence import Sequence

_E = TypeVar("_E", bound=BaseException)

# PyTorch says it in a RuntimeError: torch.OutOfMemoryError is one, and so is what its CPU allocator and CUDA raise.
_SHORTAGES = ("out of memory", "defaultcpuallocator", "_alloc_failed", "cudaerrormemoryallocation")

_logger = logging.getLogger("photonlite")


def step_error(step: Step, cause: BaseException) -> EngineError:
    """Log why a step failed, and return what its requests are told: not the words of lower layers.

    Raises an EngineDiedError that the step has failed with.
    """
    if isinstance(cause, EngineDiedError):
        raise cause
    size = f"{len(step.rows)} sequences" if step.rows else f"{len(step.plan.groups)} images"
    without_frames(cause)  # log handlers may keep the error
    short = is_shortage(cause)
    level = logging.WARNING if short else logging.ERROR
    why = "memory ran out for" if short else "the device failed"
    _logger.log(level, "%s a %s step of %s", why, step.kind, size, exc_info=cause)
    if short:
        return out_of_memory(cause)
    error = StepError(f"the device failed a {step.kind} step that carried this request: try again")
    error.__cause__ = cause
    return error


def request_error(sequence: Sequence, error: BaseException) -> BaseException:
    """Log an unexpected error that ends a request, and return what its caller is told."""
    without_frames(error)
    if not isinstance(error, PhotonliteError):
        _logger.error("request %d failed", sequence.number, exc_info=error)
    return told(error)


def may_be_split(batch: ScheduledBatch, error: BaseException) -> bool:
    """Whether smaller launches may succeed: memory was short for several crops or prompts."""
    groups = batch.groups
    several = len(batch.rows) > 1 or len(groups) > 1 or any(one.count > 1 and not one.job.is_whole for one in groups)
    return batch.kind != "decode" and several and is_shortage(error)


def without_frames(error: _E) -> _E:
    """Turn the tracebacks of an error and its causes into notes: a kept frame keeps images or all weights alive."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if one.__traceback__ is not None:
            lines = "".join(traceback.format_tb(one.__traceback__))
            one.add_note(f"Traceback (most recent call last):\n{lines}".rstrip())
            one.__traceback__ = None
        one.__context__ = None
        one = one.__cause__
    return error


def copied(error: PhotonliteError) -> PhotonliteError:
    """Return an error to raise for one caller of several, who may add to its message and keep its frames."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


def is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError | OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    try:
        text = str(error).lower()
    except Exception:  # a plug-in's error may fail at that, too
        return False
    return any(words in text for words in _SHORTAGES)


def told(error: BaseException) -> BaseException:
    """Return what a caller is told of an error: a shortage of memory by its type, everything else as it is."""
    if isinstance(error, PhotonliteError) or not is_shortage(error):
        return error
    return out_of_memory(error)


def out_of_memory(cause: BaseException) -> OutOfMemoryError:
    error = OutOfMemoryError(
        "memory ran out while this request was worked on, and nothing else has failed: try again, ask for less at a "
        "time, or send smaller images"
    )
    error.__cause__ = without_frames(cause)
    return error

"""What went wrong inside: errors that may be kept, what callers are told of them, and whether memory was short."""

import errno
import traceback
from typing import TypeVar

from photonlite.errors import OutOfMemoryError, PhotonliteError

_E = TypeVar("_E", bound=BaseException)

# PyTorch says it in a RuntimeError: torch.OutOfMemoryError is one, and so is what its CPU allocator and CUDA raise.
_SHORTAGES = ("out of memory", "defaultcpuallocator", "_alloc_failed", "cudaerrormemoryallocation")


def without_frames(error: _E) -> _E:
    """Turn the tracebacks of an error and its causes into notes, which are printed with it.

    A frame refers to everything its function had in hand, and to the frames that called it: one error in a list of
    results would keep a decoded image, or all weights.

    Args:
        error: Changed in place.

    Returns:
        The error.
    """
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


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on the host or on the device."""
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
    """Give what a caller is told of an error: a shortage of memory by its type, everything else as it is."""
    if isinstance(error, PhotonliteError) or not is_shortage(error):
        return error
    return out_of_memory(error)


def out_of_memory(cause: BaseException) -> OutOfMemoryError:
    """Say that memory has run out for a request."""
    error = OutOfMemoryError(
        "memory ran out while this request was worked on, and nothing else has failed: try again, ask for less at a "
        "time, or send smaller images"
    )
    error.__cause__ = without_frames(cause)
    return error

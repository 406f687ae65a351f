"""What libraries in C write to standard error, as lines of the log.

libtiff and others know no logging of Python: they write to file descriptor 2, from any thread and any child process.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Final

from photonlite.server.transport.logs import LOGGER

_LONGEST: Final = 300
"""Characters of a message in the log."""


@contextlib.contextmanager
def library_messages() -> Iterator[None]:
    """Log what is written to file descriptor 2 while a block runs; `sys.stderr` goes on to where it went before."""
    try:
        original = os.dup(2)
    except OSError:  # the process was started without a standard error
        yield
        return
    reading, writing = os.pipe()
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    before = sys.stderr
    sys.stderr = open(os.dup(original), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - closed below
    thread = threading.Thread(target=_log_lines, args=(reading,), name="photonlite-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
        os.dup2(original, 2)  # closes the pipe, unless a child process still holds it
        os.close(original)
        thread.join(timeout=1)


def _log_lines(reading: int) -> None:
    with open(reading, "rb") as pipe:
        while line := pipe.readline(4096):
            text = line.decode(errors="backslashreplace").strip()[:_LONGEST]
            if text:
                LOGGER.warning("library message", extra={"fields": {"text": text}})

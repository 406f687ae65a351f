"""The process that compiles: `python -m photonlite.grammar.compiler.worker`, with a pipe for jobs and one for results.

```
stdin    (pieces, ids, limit_s, memory)          GrammarSpec               GrammarSpec       ...  end: it ends as well
stdout                                   READY       TAKEN  Automaton         TAKEN  an error
```

Compiling may take seconds and memory without bounds, and holds Python's global lock meanwhile: nothing else would run
in a process that did it itself. PyTorch is not imported here. Whoever started this process kills it when a job takes
too long; should there be nobody left to do so, an alarm does it.
"""

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Final

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler.building import prepare
from photonlite.grammar.compiler.frames import decode, encode, read_frame, write_frame
from photonlite.grammar.spec import GrammarSpec

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None  # type: ignore[assignment]

READY: Final = "ready"
"""The first message: everything is imported, the vocabulary has been read."""

TAKEN: Final = "taken"
"""Says that a job has been read: if the process ends now, it may be the job's fault."""

Build = Callable[[GrammarSpec], Any]
"""Gives the automaton of a spec."""


def serve(prepare: Callable[[Sequence[bytes], SpecialIds], Build]) -> None:
    """Compile what comes, until the pipe is closed.

    Args:
        prepare: Is told the tokens' bytes and the ids that grammars speak of, once, and gives what compiles.
    """
    _ignore_signals()
    jobs, results = _claim_pipes()
    with contextlib.suppress(EOFError, BrokenPipeError):  # nobody is there any more
        pieces, ids, limit_s, memory = _setup(read_frame(jobs))
        build = prepare(pieces, ids)
        _limit_memory(memory)
        _collect_garbage_later()
        write_frame(results, encode(READY))
        while True:
            spec = decode(read_frame(jobs))
            assert isinstance(spec, GrammarSpec)
            write_frame(results, encode(TAKEN))
            _alarm(2 * limit_s + 5)
            write_frame(results, _outcome(build, spec, memory))
            _alarm(0)
            gc.collect()


def _setup(data: bytes) -> tuple[Sequence[bytes], SpecialIds, float, int]:
    setup: Any = decode(data)
    pieces, ids, limit_s, memory = setup
    return pieces, ids, limit_s, memory


def _outcome(build: Build, spec: GrammarSpec, memory: int) -> bytes:
    """Give the automaton or the error, encoded: what is wrong with a spec is no reason to end."""
    try:
        return encode(build(spec))
    except BaseException as error:  # a panic of the compiler's Rust is no Exception
        return encode(_typed(error, spec, memory))


def _typed(error: BaseException, spec: GrammarSpec, memory: int) -> GrammarError:
    if isinstance(error, GrammarError):
        return error.with_traceback(None)
    if isinstance(error, MemoryError):
        return GrammarTooLargeError(
            f"compiling the {spec.kind} took more than {memory >> 20} MiB of memory: make it smaller"
        )
    if isinstance(error, RecursionError):
        return GrammarTooLargeError(f"the {spec.kind} is nested too deeply to be compiled: make it flatter")
    return GrammarError(f"the {spec.kind} cannot be compiled: {type(error).__name__}: {error!s:.300}")


def _ignore_signals() -> None:
    """Leave it to the process at the other end when to stop.

    Ctrl-C, and service managers that stop all processes of a group at once, mean that one. It may still have answers to
    finish; when it is gone, the pipe is closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _claim_pipes() -> tuple[int, int]:
    """Keep both pipes to oneself: what a library prints goes to stderr, and nothing else reads jobs."""
    jobs, results = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return jobs, results


def _collect_garbage_later() -> None:
    """Leave it to the time between jobs: tables of millions of numbers hold none, and take long to search for it."""
    gc.freeze()
    gc.disable()


def _limit_memory(size: int) -> None:
    """Limit the address space, where the system knows such limits and none that is lower has been set."""
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        now, most = resource.getrlimit(resource.RLIMIT_AS)
        if now == resource.RLIM_INFINITY or now > size:
            resource.setrlimit(resource.RLIMIT_AS, (size, most))


def _alarm(seconds: float) -> None:
    """Have the process killed after so many seconds, even inside a library; 0 takes that back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    serve(prepare)

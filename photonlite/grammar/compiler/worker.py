"""The process that compiles: `python -m photonlite.grammar.compiler.worker`, with a pipe for jobs and one for results.

```
stdin    (pieces, ids, limit_s, memory)       GrammarSpec                    GrammarSpec       ...  end: it exits
stdout                                  READY            TAKEN  Automaton              TAKEN  error
```

Compiling may take seconds and much memory, and holds Python's global lock meanwhile: in the engine's own process
nothing else would run. PyTorch is not imported here. The client kills this process when a job takes too long; an alarm
does so should the client be gone.

A message is its length in 8 bytes and a pickle. File descriptors are used unbuffered: a buffer has a lock, which a
fork of the client may copy while it is held.
"""

import contextlib
import gc
import json
import os
import pickle
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.builder import build_automaton
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.automata.trie import TokenBytes, TokenTrie
from photonlite.grammar.json_schema.reader import ANY_OBJECT, read_schema
from photonlite.grammar.spec import GrammarSpec

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None  # type: ignore[assignment]

READY: Final = "ready"
"""The first message: everything is imported, the vocabulary has been read."""

TAKEN: Final = "taken"
"""A job has been read: if the process ends now, the job may be the cause."""

Build = Callable[[GrammarSpec], Any]

_LENGTH = struct.Struct(">Q")
_CHUNK = 1 << 20
_NO_BYTES: Final = TokenBytes(())


def compile_with(pieces: Sequence[bytes], ids: SpecialIds) -> Callable[[GrammarSpec], Automaton]:
    """Read a vocabulary; returns what compiles specs for it.

    Automata come without the vocabulary, which is large and the same in all of them: the client adds its own copy.
    """
    trie = TokenTrie(pieces)

    def build(spec: GrammarSpec) -> Automaton:
        if spec.kind == "schema":
            pattern, free_names = read_schema(json.loads(spec.source))
        else:
            pattern, free_names = (spec.source, False) if spec.kind == "regex" else (ANY_OBJECT, True)
        dfa = compile_dfa(pattern, native=spec.kind != "regex")
        return replace(build_automaton(dfa, trie, ids), pieces=_NO_BYTES, free_names=free_names)

    return build


def encode(message: object) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> object:
    """Unpickle a message of this program's own processes; a pickle from elsewhere could run anything."""
    return pickle.loads(data)


def write_frame(pipe: int, data: bytes) -> None:
    """Write all of some bytes; raises an OSError where the other side is gone."""
    for part in (_LENGTH.pack(len(data)), data):
        left = memoryview(part)
        while left:
            left = left[os.write(pipe, left) :]


def read_frame(pipe: int) -> bytes:
    """Read what `write_frame` wrote; raises an EOFError where the pipe is closed, perhaps within a frame."""
    (size,) = _LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))
    return _read_exactly(pipe, size)


def _read_exactly(pipe: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(pipe, min(_CHUNK, size - len(data)))
        if not part:
            raise EOFError(f"the pipe was closed after {len(data)} of {size} bytes")
        data += part
    return bytes(data)


def serve(prepare: Callable[[Sequence[bytes], SpecialIds], Build]) -> None:
    """Compile one spec after the other until the pipe is closed."""
    # Ctrl-C, and service managers that stop a whole group, mean the client: it may still have answers to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    jobs, results = _claim_pipes()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the client is gone
        setup: Any = decode(read_frame(jobs))
        pieces, ids, limit_s, memory = setup
        build = prepare(pieces, ids)
        _limit_memory(memory)
        # Garbage is collected between jobs: tables of millions of numbers hold none, and take long to search for it.
        gc.freeze()
        gc.disable()
        write_frame(results, encode(READY))
        while True:
            spec = decode(read_frame(jobs))
            assert isinstance(spec, GrammarSpec)
            write_frame(results, encode(TAKEN))
            _alarm(2 * limit_s + 5)
            write_frame(results, _outcome(build, spec, memory))
            _alarm(0)
            gc.collect()


def _outcome(build: Build, spec: GrammarSpec, memory: int) -> bytes:
    """Return the automaton or the error, encoded: what is wrong with a spec does not end the process."""
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


def _claim_pipes() -> tuple[int, int]:
    """Move both pipes aside: what a library prints goes to stderr, and nothing else reads jobs."""
    jobs, results = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return jobs, results


def _limit_memory(size: int) -> None:
    """Limit the address space, where the system knows such limits and none that is lower has been set."""
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        now, most = resource.getrlimit(resource.RLIMIT_AS)
        if now == resource.RLIM_INFINITY or now > size:
            resource.setrlimit(resource.RLIMIT_AS, (size, most))


def _alarm(seconds: float) -> None:
    """Have the process killed after some seconds, even inside a library; 0 takes that back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    serve(compile_with)

"""The process that compiles: `python -m photonlite.grammar.compiler.worker`, with a socket as its standard input.

```
in     (pieces, ids, limit_s, alarm_s, memory)       GrammarSpec                    GrammarSpec       ...  end: it exits
out                                           ready            taken  Automaton              taken  error
```

Compiling may take seconds and much memory, and holds Python's global lock. The kernel kills this process when a job
takes `limit_s` seconds of CPU time, and the client when it takes too long; an alarm after `alarm_s` seconds does so if
the client is gone. PyTorch is not imported here. Messages are pickles.
"""

import contextlib
import gc
import json
import pickle
import resource
import signal
from collections.abc import Callable, Sequence
from typing import Any

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.builder import build_automaton
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.automata.tables import AutomatonTables, SpecialIds
from photonlite.grammar.automata.trie import TokenTrie
from photonlite.grammar.json_schema.reader import ANY_OBJECT, read_schema
from photonlite.grammar.spec import GrammarSpec
from photonlite.processes.messages import connect_to_parent, receive_message, send_message, send_ready

Build = Callable[[GrammarSpec], Any]


def compile_with(pieces: Sequence[bytes], ids: SpecialIds) -> Callable[[GrammarSpec], AutomatonTables]:
    trie = TokenTrie(pieces)

    def build(spec: GrammarSpec) -> AutomatonTables:
        if spec.kind == "schema":
            pattern, free_names = read_schema(json.loads(spec.source), listed=bool(ids.digits))
        else:
            pattern, free_names = (spec.source, False) if spec.kind == "regex" else (ANY_OBJECT, True)
        dfa = compile_dfa(pattern, native=spec.kind != "regex")
        return build_automaton(dfa, trie, ids, free_names=free_names)

    return build


def serve(prepare: Callable[[Sequence[bytes], SpecialIds], Build]) -> None:
    """Compile one spec after the other until the socket is closed."""
    connection = connect_to_parent()
    with contextlib.suppress(EOFError, ConnectionError):  # the client is gone
        pieces, ids, limit_s, alarm_s, memory = pickle.loads(receive_message(connection))
        build = prepare(pieces, ids)
        _limit_memory(memory)
        # Garbage is collected between jobs: tables of millions of numbers hold none, and take long to search for it.
        gc.freeze()
        gc.disable()
        send_ready(connection)
        while True:
            spec = pickle.loads(receive_message(connection))
            send_message(connection, b"taken")  # if the process ends from here on, the job may be the cause
            _set_timers(limit_s, alarm_s)
            send_message(connection, _outcome(build, spec, memory))
            _set_timers(0, 0)
            gc.collect()


def _outcome(build: Build, spec: GrammarSpec, memory: int) -> bytes:
    """Return the automaton or the error, encoded: what is wrong with a spec does not end the process."""
    try:
        return pickle.dumps(build(spec))
    except BaseException as error:  # a panic of the compiler's Rust is no Exception
        return pickle.dumps(_typed(error, spec, memory))


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


def _set_timers(cpu_s: float, alarm_s: float) -> None:
    """Have the kernel kill this process after so much CPU time, or so many seconds, even inside a library; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, alarm_s)


def _limit_memory(size: int) -> None:
    """Limit the address space, where the system knows such limits and none that is lower has been set."""
    with contextlib.suppress(OSError, ValueError):
        now, most = resource.getrlimit(resource.RLIMIT_AS)
        if now == resource.RLIM_INFINITY or now > size:
            resource.setrlimit(resource.RLIMIT_AS, (size, most))


if __name__ == "__main__":
    # Imports the parts of NumPy that are loaded at their first use, which a confined process cannot.
    compile_with((b"", b"1"), SpecialIds(0, None, None, 2))(GrammarSpec("schema", '{"type": "integer"}'))
    serve(compile_with)

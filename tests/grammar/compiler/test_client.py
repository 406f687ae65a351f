"""The compiler and its pool, with real processes whose build function is a fake. Gates and pipes in place of sleeps."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from photonlite.errors import (
    EngineError,
    GrammarBusyError,
    GrammarError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    GrammarWorkerError,
    ModelError,
)
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler import client as module
from photonlite.grammar.compiler.client import CompileProcess, GrammarCompiler
from photonlite.grammar.spec import GrammarSpec
from photonlite.processes import worker
from tests.grammar.compiler.workers import COMMAND, GUARD, IDS, PIECES, Gate, compiling, open_at_once, spec

ROOT = Path(__file__).resolve().parents[3]


def answer(future: "Future[Any]") -> Any:
    """What the fake worker's automaton holds, or the error."""
    error = future.exception(GUARD)
    return future.result().tables.ids.end if error is None else error


def ask(compiler: GrammarCompiler, source: str) -> Any:
    return answer(compiler.compile(spec(source)))


def working() -> list[threading.Thread]:
    """The threads of all compilers."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("photonlite-grammar")]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_spec_is_compiled_in_another_process_and_remembered() -> None:
    with compiling() as compiler:
        first = compiler.compile(spec("process"))
        pid = answer(first)
        again = compiler.compile(spec("process"))

        assert pid != os.getpid()
        assert again.done()
        assert again.result() is first.result()
        assert ask(compiler, "give x") == "x"


def test_a_worker_is_out_of_reach_of_the_terminal() -> None:
    with compiling() as compiler:
        leads_its_own_session = ask(compiler, "state")[3]

    assert leads_its_own_session


def test_workers_learn_the_vocabulary_once_and_all_automata_share_it() -> None:
    asked = []
    compiler = GrammarCompiler(lambda: asked.append(1) or PIECES, IDS, workers=2, limit_s=GUARD, command=COMMAND)
    try:
        pieces, ids = ask(compiler, "vocabulary")
        automata = [compiler.compile(spec(f"give {number}")).result(GUARD) for number in range(4)]
        os.kill(ask(compiler, "process"), signal.SIGKILL)
        assert ask(compiler, "give x") == "x"
    finally:
        compiler.close()

    assert (pieces, ids.end, ids.size) == (list(PIECES), IDS.end, IDS.size)
    assert asked == [1]
    assert len({id(automaton.pieces) for automaton in automata}) == 1
    assert [automata[0].pieces[index] for index in range(len(PIECES))] == list(PIECES)


def test_equal_specs_share_one_compilation(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with compiling() as compiler:
        futures = [compiler.compile(gate.job) for _ in range(3)]
        gate.reached()
        futures.append(compiler.compile(gate.job))
        gate.open("once")

        assert {id(future.result(GUARD)) for future in futures} == {id(futures[0].result())}
        assert answer(futures[3]) == "once"


def test_specs_wait_in_order(tmp_path: Path) -> None:
    gate, ended, settled = Gate(tmp_path), [], threading.Semaphore(0)
    with compiling(workers=1) as compiler:
        futures = [compiler.compile(gate.job)]
        futures += [compiler.compile(spec(f"give {number}")) for number in range(5)]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: (ended.append(number), settled.release()))
        gate.reached()
        gate.open()
        for _ in futures:  # a future wakes those that wait for it before it calls back
            assert settled.acquire(timeout=GUARD)

        assert ended == [0, 1, 2, 3, 4, 5]


def test_several_workers_compile_at_once(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, name) for name in "ab"]
    with compiling(workers=2) as compiler:
        futures = [compiler.compile(gate.job) for gate in gates]
        for gate in gates:
            gate.reached()
        for gate in reversed(gates):
            gate.open("both")

        assert [answer(future) for future in futures] == ["both", "both"]


def test_a_full_queue_refuses_specs(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with compiling(max_waiting=1) as compiler:
        runs = compiler.compile(gate.job)
        gate.reached()
        waits = compiler.compile(spec("give 1"))
        refused = compiler.compile(spec("give 2"))

        assert isinstance(refused.exception(0), GrammarBusyError)
        gate.open()
        assert answer(waits) == "1"
        assert answer(runs) == ""
        assert ask(compiler, "give 2") == "2"


def test_a_future_that_is_cancelled_leaves_the_others_alone(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with compiling(workers=1) as compiler:
        runs = [compiler.compile(gate.job) for _ in range(2)]
        waits = [compiler.compile(spec("give 1")) for _ in range(2)]
        never = compiler.compile(spec("process"))
        gate.reached()
        assert all(future.cancel() for future in (runs[0], waits[1], never))
        gate.open("on")

        assert (answer(runs[1]), answer(waits[0])) == ("on", "1")
        assert compiler.compile(gate.job).done()
        assert compiler._pool.cache.get(spec("process")) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("compute", "0.2 s of CPU time: make it smaller, or raise grammar_limit_s of the engine"),
        ("ever", "1 s, in which it got less than 0.2 s of CPU time, its limit: try again in 30 s, when the"),
    ],
)
def test_a_job_over_its_time_costs_its_worker_and_no_other_job(
    source: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_worker = CompileProcess.ask

    def ask_patiently(self: CompileProcess, one: GrammarSpec, limit_s: float) -> Any:
        return ask_worker(self, one, limit_s if one.source == "ever" else GUARD)

    monkeypatch.setattr(CompileProcess, "ask", ask_patiently)
    with compiling(limit_s=0.2) as compiler:
        late = compiler.compile(spec(source))
        after = compiler.compile(spec("give x"))
        error = late.exception(GUARD)

        assert type(error) is GrammarTimeoutError
        assert isinstance(error, TimeoutError)
        assert f"the regex was not compiled within {message}" in str(error)
        assert answer(after) == "x"


def test_time_for_which_a_job_only_waits_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 10 * GUARD)
    with compiling(limit_s=0.3) as compiler:  # importing what a job needs takes some of it
        assert ask(compiler, "sleep 0.5") == "0.5"


def test_time_counts_from_when_a_ready_worker_has_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    ask_worker = CompileProcess.ask
    monkeypatch.setattr(CompileProcess, "ask", lambda *a: limits.append(a[2]) or ask_worker(*a))
    gate = Gate(tmp_path)
    with compiling(limit_s=GUARD) as compiler:
        futures = [compiler.compile(gate.job), compiler.compile(spec("give x"))]
        gate.reached()
        gate.open()
        wait(futures, GUARD)

    assert limits == [GUARD * module.PATIENCE] * 2


@pytest.mark.long
@pytest.mark.parametrize("source", [f"die {signal.SIGABRT}", f"die {signal.SIGSEGV}", "ever"])
def test_a_spec_that_cost_a_worker_is_refused_at_once_for_a_while(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling(limit_s=0.2 if source == "ever" else GUARD) as compiler:
        first = compiler.compile(spec(source)).exception(GUARD)
        again = compiler.compile(spec(source))

        assert again.done()
        assert type(again.exception()) is type(first)
        assert again.exception() is not first
        monkeypatch.setattr(module.time, "monotonic", lambda: 1e12)
        assert compiler._pool.cache.get(spec(source)) is None


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_a_job_that_brings_two_workers_down_is_too_large(number: int) -> None:
    with compiling() as compiler:
        error = ask(compiler, f"die {number}")

        assert type(error) is GrammarTooLargeError
        assert f"two processes that compiled the regex ended, the last with exit code {-number}, as they" in str(error)
        assert compiler.counters == {"grammars_compiled": 0, "grammar_workers_lost": 2}
        assert ask(compiler, "give x") == "x"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_job_whose_worker_ended_once_is_done_by_another(tmp_path: Path, number: int) -> None:
    with compiling() as compiler:
        assert ask(compiler, f"die_once {tmp_path / 'died'} {number}") == "done"
        assert compiler.counters == {"grammars_compiled": 1, "grammar_workers_lost": 1}


@pytest.mark.long
def test_a_job_whose_workers_are_killed_from_outside_is_not_blamed_for_it() -> None:
    with compiling() as compiler:
        source = f"die {signal.SIGKILL}"
        error = ask(compiler, source)

        assert type(error) is GrammarWorkerError
        assert "were killed from outside: try again later" in str(error)
        assert compiler._pool.cache.get(spec(source)) is None  # nor is it refused the next time
        assert ask(compiler, "give x") == "x"


def test_exceeding_the_memory_limit_is_an_error_of_the_job() -> None:
    with compiling() as compiler:
        error = ask(compiler, "starve")

        assert type(error) is GrammarTooLargeError
        assert compiler.counters == {"grammars_compiled": 1, "grammar_workers_lost": 0}


def test_a_job_that_its_worker_took_too_long_for_is_not_tried_again() -> None:
    with compiling(limit_s=0.2) as compiler:
        assert type(ask(compiler, "ever")) is GrammarTimeoutError
        assert compiler.counters["grammar_workers_lost"] == 1


def test_a_second_worker_starts_only_for_a_job_that_would_have_to_wait(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, name) for name in "ab"]
    with compiling(workers=2) as compiler:
        assert ask(compiler, "give 1") == "1"
        assert ask(compiler, "give 2") == "2"
        assert len(compiler._pool._threads) == 1

        futures = [compiler.compile(gate.job) for gate in gates]
        for gate in gates:
            gate.reached()
        assert compiler.gauges == {
            "grammar_workers": 2,
            "grammar_running": 2,
            "grammar_waiting": 0,
            "grammar_cache_bytes": compiler.gauges["grammar_cache_bytes"],
        }
        for gate in gates:
            gate.open()
        wait(futures, GUARD)


def test_a_caller_with_many_slow_jobs_leaves_a_worker_to_the_others(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with compiling(workers=2) as compiler:
        slow = compiler.compile(gate.job, caller="greedy")
        gate.reached()
        more = [compiler.compile(spec(f"give {number}"), caller="greedy") for number in range(9)]
        other = compiler.compile(spec("give x"), caller="other")

        assert answer(other) == "x"
        assert not any(future.done() for future in more)
        gate.open()
        assert [answer(future) for future in (slow, *more)] == ["", *map(str, range(9))]


def test_salts_share_neither_automata_nor_timing(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with compiling(workers=1) as compiler:  # two would reach the gate together
        mine = compiler.compile(spec("process"), cache_salt="a").result(GUARD)

        assert compiler.compile(spec("process"), cache_salt="a").done()
        assert compiler._pool.cache.get(spec("process"), cache_salt="b") is None
        assert compiler.compile(spec("process"), cache_salt="b").result(GUARD) is not mine

        first = compiler.compile(gate.job, cache_salt="a", caller="a")
        second = compiler.compile(gate.job, cache_salt="b", caller="b")
        gate.reached()
        gate.open("a's")
        gate.reached()  # it is compiled once more
        gate.open("b's")
        assert (answer(first), answer(second)) == ("a's", "b's")


def test_a_worker_that_died_while_idle_is_replaced_and_no_job_is_blamed() -> None:
    with compiling() as compiler:
        pid = ask(compiler, "process")
        os.kill(pid, signal.SIGKILL)

        assert ask(compiler, "give x") == "x"


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_job_that_was_not_taken_is_given_to_another_worker(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask_worker = CompileProcess.ask

    def once_too_late(self: CompileProcess, *arguments: Any) -> Any:
        asked.append(arguments[0].source)
        if len(asked) <= times:  # it dies after it was last looked at
            self._process.kill()
            self._process.wait()
        return ask_worker(self, *arguments)

    monkeypatch.setattr(CompileProcess, "ask", once_too_late)
    with compiling(workers=1) as compiler:  # a second one would take the second job at any moment
        futures = [compiler.compile(spec(f"give {number}")) for number in range(2)]

        assert answer(futures[1]) == "1"
        assert (type(answer(futures[0])) is GrammarWorkerError) == (times == 3)
        assert asked == ["give 0"] * min(3, times + 1) + ["give 1"]


def test_only_slow_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling() as compiler:
        errors = [ask(compiler, "refuse it") for _ in range(2)]
        assert [(type(error), str(error)) for error in errors] == [(GrammarTooLargeError, "it")] * 2
        assert compiler._pool.cache.get(spec("refuse it")) is None

        monkeypatch.setattr(module, "COSTLY_S", 0.0)
        ask(compiler, "refuse it")
        assert compiler.compile(spec("refuse it")).done()


def test_the_least_recently_used_automata_are_evicted_over_the_limit() -> None:
    with compiling(cache_bytes=25_000) as compiler:
        for size in (10_000, 10_001, 10_002):
            ask(compiler, f"large {size}")

        known = [compiler._pool.cache.get(spec(f"large {size}")) for size in (10_000, 10_001, 10_002)]
        assert [automaton is not None for automaton in known] == [False, True, True]


def test_large_results_come_whole() -> None:
    with compiling() as compiler:
        assert len(ask(compiler, "large 50000000")) == 50_000_000


def test_a_worker_that_cannot_start_fails_what_waits_and_is_tried_again() -> None:
    with compiling("broken") as compiler:
        errors = [ask(compiler, f"give {number}") for number in range(2)]

    for error in errors:
        assert type(error) is GrammarWorkerError
        assert "does not start: RuntimeError: no such vocabulary; check that" in str(error)


def test_a_program_that_is_not_there_is_a_typed_error() -> None:
    compiler = GrammarCompiler(lambda: PIECES, IDS, command=("/no/such/program",))
    try:
        assert "does not start: [Errno 2]" in str(ask(compiler, "give x"))
    finally:
        compiler.close()


def test_a_worker_that_cannot_start_is_tried_again_for_the_next_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, often = [], threading.Event()

    def fail(command: Any, **options: Any) -> CompileProcess:
        tries.append(command)
        if len(tries) == 10:
            often.set()
        raise GrammarWorkerError("no process can be started")

    monkeypatch.setattr(module, "CompileProcess", fail)
    with compiling() as compiler:
        errors = [ask(compiler, f"give {number}") for number in range(3)]

        assert [str(error) for error in errors] == ["no process can be started"] * 3
        assert not often.wait(0.2)


def test_a_worker_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "START_S", 0.2)
    with compiling("deaf") as compiler:
        assert "it was not ready after 0.2 s" in str(ask(compiler, "give x"))


def test_a_vocabulary_that_cannot_be_had_fails_what_waits() -> None:
    def fail() -> Any:
        raise KeyError("tokens")

    compiler = GrammarCompiler(fail, IDS, command=COMMAND)
    try:
        error = ask(compiler, "give x")
        assert type(error) is EngineError
        assert "KeyError('tokens')" in str(error)
    finally:
        compiler.close()


def test_a_vocabulary_that_could_not_be_had_is_asked_for_again() -> None:
    answers: list[Any] = [None, None, PIECES]  # asked for when the worker starts, and again for its first job
    compiler = GrammarCompiler(lambda: answers.pop(0), IDS, limit_s=GUARD, command=COMMAND)
    try:
        assert type(ask(compiler, "give x")) is EngineError
        assert ask(compiler, "give x") == "x"
    finally:
        compiler.close()


def test_workers_are_told_the_limits() -> None:
    with compiling(limit_s=100.0) as compiler:
        _, (cpu_s, alarm_s), memory, _ = ask(compiler, "state")

    assert 0 < cpu_s <= 101 < 5 * 100 < alarm_s <= 506
    assert memory == module.MEMORY


def test_a_bug_fails_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling() as compiler:
        monkeypatch.setattr(module.AutomatonCache, "keep", None)
        assert "'NoneType' object is not callable" in str(ask(compiler, "give x"))
        monkeypatch.undo()
        assert ask(compiler, "give y") == "y"


def test_closing_fails_open_jobs_ends_the_workers_and_refuses_later_jobs(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with compiling(workers=2) as compiler:
        pid = ask(compiler, "process")
        futures = [compiler.compile(gate.job), compiler.compile(spec("ever")), compiler.compile(spec("give x"))]
        gate.reached()
        compiler.close()
        compiler.close()

        for future in (*futures, compiler.compile(spec("give x")), compiler.compile(spec("process"))):
            assert isinstance(future.exception(0), ModelError)
        compiler._pool.start()
        assert gone(pid)
        assert working() == []


def test_closing_before_a_worker_is_ready_does_not_wait_for_it() -> None:
    compiler = GrammarCompiler(lambda: PIECES, IDS, command=(*COMMAND, "deaf"))
    future = compiler.compile(spec("give x"))
    compiler.close()

    assert isinstance(future.exception(0), ModelError)


def test_closing_reaches_a_worker_that_is_just_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: Any, **options: Any) -> CompileProcess:
        started = CompileProcess(command, **options)
        compiler._pool.stop()
        return started

    compiler = GrammarCompiler(lambda: PIECES, IDS, command=(*COMMAND, "deaf"))
    monkeypatch.setattr(worker, "START_S", GUARD)
    monkeypatch.setattr(module, "CompileProcess", start)
    compiler._pool.start()
    for thread in list(compiler._pool._threads):
        thread.join(GUARD)
        assert not thread.is_alive()


def test_a_compiler_that_was_never_used_starts_nothing() -> None:
    compiler = GrammarCompiler(lambda: PIECES, IDS, command=COMMAND)

    assert working() == []
    compiler.close()


@pytest.mark.long
def test_nothing_keeps_a_compiler_alive_or_what_it_was_made_of() -> None:
    class Model:
        """Holds its compiler, whose vocabulary it gives."""

        def __init__(self) -> None:
            self.compiler = GrammarCompiler(self.pieces, IDS, limit_s=GUARD, command=COMMAND)

        def pieces(self) -> tuple[bytes, ...]:
            return PIECES

    model = Model()
    ask(model.compiler, "give x")
    threads = list(model.compiler._pool._threads)
    ghost = weakref.ref(model)
    del model
    gc.collect()

    assert ghost() is None
    for thread in threads:
        thread.join(GUARD)
        assert not thread.is_alive()


def started(text: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a program with a compiler; `compiler`, `ask` and `spec` are there."""
    head = "from tests.grammar.compiler.test_client import *\n"
    head += "compiler = GrammarCompiler(lambda: PIECES, IDS, limit_s=GUARD, command=COMMAND)\n"
    command, environment = [sys.executable, "-c", head + text], {**os.environ, **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def script(text: str, **environment: str) -> tuple[int, str, str]:
    """Run such a program to its end: exit code, output and complaints."""
    program = started(text, **environment)
    output, complaints = program.communicate(timeout=GUARD)
    return program.returncode, output, complaints


@pytest.mark.long
@pytest.mark.parametrize(
    "last", ["ask(compiler, 'give x')", "compiler._pool.start()", "compiler.compile(spec('ever'))"]
)
def test_the_interpreter_ends_cleanly_whatever_the_workers_do(last: str) -> None:
    assert script(last, PYTHONDEVMODE="1", PYTHONWARNINGS="error::ResourceWarning") == (0, "", "")


@pytest.mark.long
def test_a_program_that_ends_takes_a_busy_worker_along(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = started(
        f"ask(compiler, 'hold {pipe}')\n"
        f"gate = Gate(Path({str(tmp_path)!r}))\n"
        "compiler.compile(gate.job)\n"
        "gate.reached()"
    )
    with open_at_once(pipe) as end:
        closed, _, _ = select.select([end], [], [], GUARD)

    assert closed
    assert program.communicate(timeout=GUARD) == ("", "")
    assert program.returncode == 0


@pytest.mark.long
def test_a_program_that_is_killed_takes_its_workers_along(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = started(f"ask(compiler, 'hold {pipe}')\nos.kill(os.getpid(), signal.SIGKILL)")
    with open_at_once(pipe) as end:
        closed, _, _ = select.select([end], [], [], GUARD)

    assert closed
    assert program.communicate(timeout=GUARD) == ("", "")
    assert program.returncode == -signal.SIGKILL


def test_a_fork_compiles_nothing_and_leaves_the_workers_alone() -> None:
    code, output, complaints = script(
        "pid = ask(compiler, 'process')\n"
        "running = compiler.compile(spec('ever'))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(type(ask(compiler, 'process')).__name__, compiler.compile(spec('process')).done(), flush=True)\n"
        "    compiler.close()\n"
        "    sys.exit(0)\n"  # with all that is done at an interpreter's exit
        "print(os.waitpid(child, 0)[1], gone(pid), running.done())\n"
        "compiler.close()\n"
        "print(gone(pid))"
    )

    assert (code, output.split(), complaints) == (0, ["ModelError", "True", "0", "False", "False", "True"], "")


@pytest.mark.long
def test_a_fork_does_not_keep_the_workers_of_a_program_that_was_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = started(
        f"ask(compiler, 'hold {pipe}')\n"
        "child = os.fork()\n"
        "if child == 0: signal.pause()\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert program.stdout is not None
    with open_at_once(pipe) as end:
        child = int(program.stdout.readline())
        try:
            closed, _, _ = select.select([end], [], [], GUARD)
        finally:
            os.kill(child, signal.SIGKILL)
    program.communicate(timeout=GUARD)

    assert closed


def test_a_closed_compiler_stays_closed_in_a_fork() -> None:
    code, output, complaints = script(
        "compiler.close()\n"
        "child = os.fork()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
        "print(type(ask(compiler, 'give x')).__name__, flush=True)"
    )

    assert (code, output.split(), complaints) == (0, ["ModelError", "ModelError"], "")


def test_a_worker_finds_the_package_wherever_this_process_found_it(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys, runpy; sys.path[:0] = [{str(ROOT)!r}]; runpy.run_path('use.py')"],
        cwd=_elsewhere(tmp_path),
        capture_output=True,
        text=True,
        timeout=GUARD,
    )

    assert (ended.stderr, ended.stdout.strip()) == ("", "2")


def _elsewhere(folder: Path) -> Path:
    """A folder with a module in the way of one that workers need, and a program that asks the package's own worker."""
    (folder / "outlines_core.py").write_text("raise ImportError('the wrong module')")
    (folder / "use.py").write_text(
        "from photonlite.grammar.compiler.client import GrammarCompiler\n"
        "from photonlite.grammar.spec import GrammarSpec\n"
        "from photonlite.grammar.automata.tables import SpecialIds\n"
        "pieces = [bytes([byte]) for byte in range(256)] + [b'']\n"
        "compiler = GrammarCompiler(lambda: pieces, SpecialIds(256, None, None, 257))\n"
        "print(compiler.compile(GrammarSpec('regex', 'a+')).result(300).shortest)\n"
    )
    return folder


def test_errors_of_the_real_worker_are_typed() -> None:
    pieces = [bytes([byte]) for byte in range(256)] + [b""]
    compiler = GrammarCompiler(lambda: pieces, SpecialIds(256, None, None, 257))
    try:
        assert isinstance(compiler.compile(GrammarSpec("regex", "(")).exception(GUARD), GrammarError)
    finally:
        compiler.close()

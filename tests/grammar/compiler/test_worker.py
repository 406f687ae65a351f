"""The worker process over its socket, and what the real one imports."""

import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.tables import AutomatonTables, SpecialIds
from photonlite.grammar.compiler.client import COMMAND as REAL
from photonlite.grammar.compiler.client import MEMORY
from photonlite.processes.messages import receive_message, send_message
from tests.grammar.compiler.workers import COMMAND, GUARD, IDS, PIECES, spec


class Worker:
    """A process, and the socket to it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
        self.socket, theirs = socket.socketpair()
        self.process = subprocess.Popen(command, env=environment, stdin=theirs.fileno(), stderr=subprocess.DEVNULL)
        theirs.close()

    def send(self, source: str) -> None:
        send_message(self.socket, pickle.dumps(spec(source)))

    def read(self) -> Any:
        return pickle.loads(receive_message(self.socket))

    def ask(self, source: str) -> Any:
        """What the fake worker's automaton holds, or the error."""
        self.send(source)
        assert receive_message(self.socket) == b"taken"
        reply = self.read()
        return reply.ids.end if isinstance(reply, AutomatonTables) else reply

    def end(self) -> int:
        self.socket.close()
        return self.process.wait(GUARD)


@contextmanager
def running(
    command: tuple[str, ...] = COMMAND, limit_s: float = GUARD, alarm_s: float = GUARD, setup: Any = None
) -> Iterator[Worker]:
    worker = Worker(command)
    send_message(worker.socket, pickle.dumps(setup or (list(PIECES), IDS, limit_s, alarm_s, MEMORY)))
    try:
        assert receive_message(worker.socket) == b""
        yield worker
    finally:
        worker.process.kill()
        worker.end()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running() as worker:
        yield worker


def test_it_is_told_the_vocabulary_once_and_answers_job_after_job(worker: Worker) -> None:
    assert worker.ask("give x") == "x"
    pieces, ids = worker.ask("vocabulary")

    assert pieces == list(PIECES)
    assert (ids.end, ids.coordinate, ids.size, ids.vocab_size) == (0, 5, 6, 7)
    assert worker.ask("process") == worker.ask("process") == worker.process.pid


def test_what_a_library_prints_or_reads_disturbs_nothing(worker: Worker) -> None:
    assert worker.ask("talk") == ""
    assert worker.ask("give x") == "x"


def test_errors_come_back_and_the_worker_stays(worker: Worker) -> None:
    error = worker.ask("refuse too many states")
    assert isinstance(error, GrammarTooLargeError)
    assert str(error) == "too many states"
    assert error.__traceback__ is None

    for source, kind, message in (
        ("panic at the compiler", GrammarError, "the regex cannot be compiled: Panic: at the compiler"),
        ("unpickled", GrammarError, "the regex cannot be compiled: "),
        ("recurse", GrammarTooLargeError, "nested too deeply to be compiled: make it flatter"),
    ):
        error = worker.ask(source)
        assert type(error) is kind
        assert message in str(error)
    assert worker.ask("give x") == "x"


def test_garbage_is_collected_between_jobs_only(worker: Worker) -> None:
    assert [worker.ask("garbage") for _ in range(3)] == [(False, 0)] * 3


def test_memory_is_limited_and_running_out_of_it_is_a_typed_error(worker: Worker) -> None:
    assert resource.prlimit(worker.process.pid, resource.RLIMIT_AS)[0] == MEMORY == 2 << 30

    error = worker.ask("starve")

    assert type(error) is GrammarTooLargeError
    assert "more than 2048 MiB of memory: make it smaller" in str(error)
    assert worker.ask("give x") == "x"


@pytest.mark.parametrize("most", [1 << 30, resource.RLIM_INFINITY])
def test_a_lower_memory_limit_of_the_parent_is_kept(most: int) -> None:
    lower = f"import resource as r, runpy; r.setrlimit(r.RLIMIT_AS, ({1 << 30}, {most})); "
    command = (sys.executable, "-c", f"{lower}runpy.run_path({COMMAND[1]!r}, run_name='__main__')")
    with running(command) as worker:
        assert worker.ask("state")[2] == 1 << 30


def test_signals_for_the_whole_group_are_left_to_the_parent(worker: Worker) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        worker.process.send_signal(number)

    assert worker.ask("state")[0] == [signal.SIG_IGN] * 2


def test_timers_are_set_for_a_job() -> None:
    with running(limit_s=100.0, alarm_s=300.0) as worker:
        cpu_s, alarm_s = worker.ask("state")[1]

    assert 0 < cpu_s <= 101 < alarm_s <= 301  # the kernel rounds up to its own ticks


def test_a_job_that_computes_for_too_long_ends() -> None:
    with running(limit_s=0.1) as worker:
        worker.send("compute")

        assert worker.process.wait(GUARD) == -signal.SIGPROF


def test_a_job_whose_client_is_gone_ends_with_the_alarm() -> None:
    with running(alarm_s=0.1) as worker:
        worker.send("ever")

        assert worker.process.wait(GUARD) == -signal.SIGALRM


def test_no_timer_runs_between_jobs() -> None:
    with running(limit_s=100.0, alarm_s=300.0) as worker:
        timers = [worker.ask("timers") for _ in range(2)]

    assert timers == [[100.0, 300.0], [100.0, 300.0, 0, 0, 100.0, 300.0]]


def test_it_ends_with_its_pipe_even_in_the_middle_of_a_job() -> None:
    with running() as worker:
        worker.send("give x")

        assert worker.end() == 0


def test_it_ends_when_its_results_are_not_read() -> None:
    with running() as worker:
        worker.socket.shutdown(socket.SHUT_RD)
        worker.send("give x")

        assert worker.process.wait(GUARD) == 0


def test_it_imports_neither_torch_nor_what_only_models_need() -> None:
    with running() as worker:
        modules = {name.partition(".")[0] for name in worker.ask("modules")}
        units = {name.split(".")[1] for name in worker.ask("modules") if name.startswith("photonlite.")}

    assert {"outlines_core", "numpy"} <= modules
    assert modules & {"torch", "tokenizers", "safetensors", "tqdm", "huggingface_hub"} == set()
    assert units <= {"errors", "hints", "settings", "grammar", "processes"}


def test_the_packages_own_worker_compiles() -> None:
    ids, pieces = (
        SpecialIds(end=256, coordinate=None, size=None, vocab_size=257),
        [bytes([byte]) for byte in range(256)],
    )
    with running(REAL, setup=([*pieces, b""], ids, GUARD, GUARD, MEMORY)) as worker:
        worker.send("a+")
        assert receive_message(worker.socket) == b"taken"
        automaton = worker.read()
        error = worker.ask("(")

    assert isinstance(automaton, AutomatonTables)
    assert automaton.distance[automaton.start] == 2
    assert isinstance(error, GrammarError)

"""The worker process itself, spoken to over its pipes; and what the package's own one imports."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.compiler.process import COMMAND as REAL
from photonlite.grammar.compiler.process import MEMORY
from photonlite.grammar.compiler.worker import READY, TAKEN, decode, encode, read_frame, write_frame
from tests.grammar.compiler.workers import COMMAND, IDS, LONG, PIECES, spec

Worker = subprocess.Popen[bytes]


@contextmanager
def running(command: tuple[str, ...] = COMMAND, limit_s: float = LONG, setup: Any = None) -> Iterator[Worker]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    worker = subprocess.Popen(
        command, bufsize=0, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert worker.stdin is not None
    write_frame(worker.stdin.fileno(), encode(setup or (list(PIECES), IDS, limit_s, MEMORY)))
    try:
        assert decode(read(worker)) == READY
        yield worker
    finally:
        worker.kill()
        end(worker)


def send(worker: Worker, source: str) -> None:
    assert worker.stdin is not None
    write_frame(worker.stdin.fileno(), encode(spec(source)))


def read(worker: Worker) -> bytes:
    assert worker.stdout is not None
    return read_frame(worker.stdout.fileno())


def ask(worker: Worker, source: str) -> Any:
    """What the fake worker's automaton holds, or the error."""
    send(worker, source)
    assert decode(read(worker)) == TAKEN
    reply = decode(read(worker))
    return reply.ids if isinstance(reply, Automaton) else reply


def end(worker: Worker) -> int:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.close()
    code = worker.wait(LONG)
    worker.stdout.close()
    return code


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running() as worker:
        yield worker


def test_it_is_told_the_vocabulary_once_and_answers_job_after_job(worker: Worker) -> None:
    assert ask(worker, "give x") == "x"
    pieces, ids = ask(worker, "vocabulary")

    assert pieces == list(PIECES)
    assert (ids.end, ids.coordinate, ids.size, ids.vocab_size) == (0, 5, 6, 7)
    assert ask(worker, "process") == ask(worker, "process") == worker.pid


def test_what_a_library_prints_or_reads_disturbs_nothing(worker: Worker) -> None:
    assert ask(worker, "talk") == ""
    assert ask(worker, "give x") == "x"


def test_errors_come_back_and_the_worker_stays(worker: Worker) -> None:
    error = ask(worker, "refuse too many states")
    assert isinstance(error, GrammarTooLargeError)
    assert str(error) == "too many states"
    assert error.__traceback__ is None

    for source, kind, message in (
        ("panic at the compiler", GrammarError, "the regex cannot be compiled: Panic: at the compiler"),
        ("unpickled", GrammarError, "the regex cannot be compiled: "),
        ("recurse", GrammarTooLargeError, "nested too deeply to be compiled: make it flatter"),
    ):
        error = ask(worker, source)
        assert type(error) is kind
        assert message in str(error)
    assert ask(worker, "give x") == "x"


def test_garbage_is_collected_between_jobs_only(worker: Worker) -> None:
    assert [ask(worker, "garbage") for _ in range(3)] == [(False, 0)] * 3


def test_memory_is_limited_and_running_out_of_it_is_a_typed_error(worker: Worker) -> None:
    assert resource.prlimit(worker.pid, resource.RLIMIT_AS)[0] == MEMORY == 2 << 30

    error = ask(worker, "starve")

    assert type(error) is GrammarTooLargeError
    assert "more than 2048 MiB of memory: make it smaller" in str(error)
    assert ask(worker, "give x") == "x"


@pytest.mark.parametrize("most", [1 << 30, resource.RLIM_INFINITY])
def test_a_lower_limit_of_whoever_started_it_stays(most: int) -> None:
    lower = f"import resource as r, runpy; r.setrlimit(r.RLIMIT_AS, ({1 << 30}, {most})); "
    command = (sys.executable, "-c", f"{lower}runpy.run_path({COMMAND[1]!r}, run_name='__main__')")
    with running(command) as worker:
        assert ask(worker, "state")[2] == 1 << 30


def test_signals_for_the_whole_group_are_left_to_the_parent(worker: Worker) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        worker.send_signal(number)

    assert ask(worker, "state")[0] == [signal.SIG_IGN] * 2


def test_an_alarm_is_set_for_the_time_of_a_job_only() -> None:
    with running(limit_s=100.0) as worker:
        assert 100 < ask(worker, "state")[1] < 210


def test_a_job_whose_client_is_gone_ends_with_the_alarm() -> None:
    with running(limit_s=-2.45) as worker:  # an alarm after 0.1 s
        send(worker, "ever")

        assert worker.wait(LONG) == -signal.SIGALRM


def test_no_alarm_rings_between_jobs() -> None:
    with running(limit_s=-2.45) as worker:  # an alarm after 0.1 s
        assert ask(worker, "give x") == "x"
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.3)


def test_it_ends_with_its_pipe_even_in_the_middle_of_a_job() -> None:
    with running() as worker:
        send(worker, "give x")

        assert end(worker) == 0


def test_it_ends_when_its_results_are_not_read() -> None:
    with running() as worker:
        assert worker.stdout is not None
        worker.stdout.close()
        send(worker, "give x")

        assert worker.wait(LONG) == 0


def test_it_imports_neither_torch_nor_what_only_models_need() -> None:
    with running() as worker:
        modules = {name.partition(".")[0] for name in ask(worker, "modules")}
        units = {name.split(".")[1] for name in ask(worker, "modules") if name.startswith("photonlite.")}

    assert {"outlines_core", "numpy"} <= modules
    assert modules & {"torch", "tokenizers", "safetensors", "tqdm", "huggingface_hub"} == set()
    assert units <= {"errors", "hints", "numeric", "request", "results", "settings", "grammar"}


def test_the_packages_own_worker_compiles() -> None:
    ids, pieces = (
        SpecialIds(end=256, coordinate=None, size=None, vocab_size=257),
        [bytes([byte]) for byte in range(256)],
    )
    with running(REAL, setup=([*pieces, b""], ids, LONG, MEMORY)) as worker:
        send(worker, "a+")
        assert decode(read(worker)) == TAKEN
        automaton: Any = decode(read(worker))
        error = ask(worker, "(")

    assert isinstance(automaton, Automaton)
    assert len(automaton.pieces) == 0
    assert automaton.shortest == 2
    assert isinstance(error, GrammarError)


def through_a_pipe(*frames: bytes) -> list[bytes]:
    reading, writing = os.pipe()
    writer = threading.Thread(target=lambda: ([write_frame(writing, frame) for frame in frames], os.close(writing)))
    writer.start()
    found = []
    try:
        while True:
            found.append(read_frame(reading))
    except EOFError:
        return found
    finally:
        writer.join()
        os.close(reading)


def test_frames_come_as_they_went() -> None:
    frames = [b"", b"x", bytes(range(256)) * 20_000, b"end"]

    assert through_a_pipe(*frames) == frames


def test_messages_survive() -> None:
    message = {"a": [1, None, b"\x00"], "b": ("x", 2.5)}

    assert decode(encode(message)) == message


@pytest.mark.parametrize("kept", [0, 3, 8, 10])
def test_a_pipe_that_is_closed_early_is_noticed(kept: int) -> None:
    reading, writing = os.pipe()
    write_frame(writing, b"four")
    data = os.read(reading, 100)
    os.write(writing, data[:kept])
    os.close(writing)

    with pytest.raises(EOFError, match=f"after {kept if kept < 8 else kept - 8} of {8 if kept < 8 else 4} bytes"):
        read_frame(reading)
    os.close(reading)


def test_writing_to_a_closed_pipe_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    with pytest.raises(BrokenPipeError):
        write_frame(writing, b"x")
    os.close(writing)

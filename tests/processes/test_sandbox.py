"""What a worker can still do once it is ready: hostile code would run in its place."""

import contextlib
import ctypes
import json
import logging
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from photonlite.grammar.compiler.client import COMMAND, CompileProcess
from photonlite.images.isolation.process import DecodeProcess
from photonlite.processes import worker as module
from photonlite.processes.worker import WorkerProcess
from tests.grammar.compiler.workers import IDS, PIECES
from tests.guard import GUARD

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS and others have limits only")

HOSTILE = """
import json, mmap, os, signal, socket
from photonlite.processes.messages import connect_to_parent, receive_message, send_message, send_ready

def attempt(what):
    try:
        return repr(eval(what))
    except OSError as error:
        return error.errno

connection = connect_to_parent()
send_ready(connection)
while True:
    found = [attempt(what) for what in json.loads(receive_message(connection))]
    send_message(connection, json.dumps(found).encode())
"""

LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1)
"""Version that this kernel has, below 1 for none."""


class Hostile(WorkerProcess):
    purpose = "is hostile"

    def attempt(self, *whats: str) -> list[Any]:
        """Run expressions in the worker: the number of each one's OSError, or what it returned, as text."""
        self.send(json.dumps(whats).encode())
        answers: list[Any] = json.loads(self.receive(time.monotonic() + GUARD))
        return answers


@contextlib.contextmanager
def ready(process: WorkerProcess) -> Iterator[Any]:
    try:
        process.wait_ready()
        yield process
    finally:
        process.close()


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with ready(Hostile((sys.executable, "-P", "-c", HOSTILE))) as process:
        yield process


@pytest.mark.parametrize(
    "what",
    [
        "open('/etc/passwd')",
        "open('/proc/self/environ')",
        "open('new', 'w')",
        "os.listdir('/')",
        "socket.socket()",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX)",
        "os.pipe()",
        "os.memfd_create('more')",
        "os.dup(0)",
    ],
)
def test_a_ready_worker_opens_nothing(what: str, hostile: Hostile) -> None:
    assert isinstance(hostile.attempt(what)[0], int)


@pytest.mark.skipif(LANDLOCK < 3, reason=f"this kernel has Landlock {LANDLOCK}, and 3 is needed")
@pytest.mark.parametrize(
    "what",
    [
        "os.execv('/bin/true', ['true'])",
        "os.execv('/bin/sh', ['sh', '-c', 'true'])",
        "os.unlink({path!r})",
        "os.rename({path!r}, {path!r} + '2')",
        "os.truncate({path!r}, 0)",
        "os.mkdir({path!r} + '3')",
    ],
)
def test_a_ready_worker_runs_and_changes_nothing(what: str, hostile: Hostile, tmp_path: Path) -> None:
    (path := tmp_path / "file").write_text("kept")
    assert isinstance(hostile.attempt(what.format(path=str(path)))[0], int)
    assert (path.read_text(), os.listdir(tmp_path)) == ("kept", ["file"])


@pytest.mark.skipif(LANDLOCK < 6, reason=f"this kernel has Landlock {LANDLOCK}, and 6 is needed")
def test_a_ready_worker_signals_no_other_process(hostile: Hostile) -> None:
    assert hostile.attempt(f"os.kill({os.getpid()}, 0)") == [1]


def status(process: WorkerProcess) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture(params=["decode", "grammar"])
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcess]:
    """A process of each kind, of a parent with a secret in its environment and a file open for its children."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    leak = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        setup = pickle.dumps((PIECES, IDS, 1.0, 60.0, 2**31))
        with ready(DecodeProcess() if request.param == "decode" else CompileProcess(COMMAND, setup=setup)) as process:
            yield process
    finally:
        os.close(leak)


def test_no_variable_reaches_a_worker_that_it_does_not_need(worker: WorkerProcess) -> None:
    variables = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    names = {one.partition(b"=")[0].decode() for one in variables if one}
    assert {name for name in names if not module._KEPT.fullmatch(name)} == {*module._ENVIRONMENT, "PYTHONPATH"}
    assert not any(b"secret" in one for one in variables)


def test_a_worker_has_its_own_descriptors_only(worker: WorkerProcess) -> None:
    folder = Path(f"/proc/{worker.pid}/fd")
    found = sorted(os.readlink(one).partition(":")[0].partition(" ")[0] for one in folder.iterdir())
    files = ["/memfd", "/memfd", f"/proc/{worker.pid}/statm"] if isinstance(worker, DecodeProcess) else []
    assert found == sorted(["/dev/null"] * 3 + ["socket"] + files)


def test_a_worker_has_no_rights_and_its_limits_are_final(worker: WorkerProcess) -> None:
    names = ("CORE", "NPROC", "NOFILE")
    assert {resource.prlimit(worker.pid, getattr(resource, f"RLIMIT_{name}")) for name in names} == {(0, 0)}
    found = status(worker)
    assert (found["NoNewPrivs"], found["Threads"]) == ("1", "1")
    assert {int(found[name], 16) for name in ("CapPrm", "CapEff", "CapInh")} == {0}


def test_a_worker_that_is_stopped_ends_with_the_process_that_started_it() -> None:
    script = (
        "import time\n"
        "from photonlite.images.isolation.process import DecodeProcess\n"
        "process = DecodeProcess(); process.wait_ready(); print(process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
    with os.fdopen(ended, "rb") as watched:
        assert select.select([watched], [], [], GUARD)[0], "the worker lives on"


def test_what_a_system_lacks_is_logged_once_for_each_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = "import photonlite.processes.sandbox as s; s._forbid_files = lambda libc: -1\n" + HOSTILE
    module._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with ready(Hostile((sys.executable, "-P", "-c", lacking))) as process:
                assert isinstance(process.attempt("open('/etc/passwd')")[0], int)  # limits hold all the same
    (record,) = caplog.records
    assert "the process that is hostile is confined less, as this system lacks: Landlock" in record.getMessage()

"""The supervisor over a server that starts in a moment; `test_recovery` has a real one."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from photonlite.server.supervisor import LONGEST_WAIT_S, delay_s
from tests.server.live import GUARD, ROOT, ServerProcess
from tests.serving import on_thread

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sockets are handed to new programs on POSIX only")


@contextlib.contextmanager
def supervised(**options: Any) -> Iterator[tuple[ServerProcess, int]]:
    """Run a supervisor; gives its process, once the first one serves, and the port."""
    with ServerProcess("-m", "tests.server.supervised", json.dumps(options)) as process:
        yield process, serving(process)


def serving(process: ServerProcess) -> int:
    return int(process.wait_for("serving on").split()[-1])


def get(port: int, path: str = "/state") -> dict[str, Any]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)) as connection:
        connection.request("GET", path)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer


def end(port: int, code: int) -> None:
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        get(port, f"/end/{code}")


def events(process: ServerProcess) -> list[tuple[str, str, int]]:
    return [(line["event"], line["reason"], line["exit_code"]) for line in process.lines]


def test_delays_double_after_the_first_restart_up_to_a_limit() -> None:
    assert [delay_s(number) for number in (1, 2, 3, 4, 20)] == [0.0, 1.0, 2.0, 4.0, LONGEST_WAIT_S]


def test_a_killed_process_is_started_again_and_connections_wait_for_it(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with supervised(gate=gate) as (process, port):
        first = get(port)
        held = on_thread(lambda: get(port, "/hold"))
        process.wait_for("held")
        os.kill(first["pid"], signal.SIGKILL)

        assert isinstance(held.exception(GUARD), ConnectionError | http.client.HTTPException)
        process.wait_for("loading")
        waiting = on_thread(lambda: get(port))  # connects, since the port is still bound
        Path(gate).write_text("")
        second = waiting.result(GUARD)
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    assert (first["restarts"], first["device"]) == ({}, None)
    assert (second["restarts"], second["device"]) == ({"signal": 1}, "cpu")
    assert second["pid"] != first["pid"]
    assert events(process) == [("restarting", "signal", 128 + signal.SIGKILL)]
    assert "supervisor loaded []\n" in process.err


@pytest.mark.parametrize(("code", "reason"), [(70, "engine_died"), (75, "hung"), (3, "exit"), (0, "exit")])
def test_the_reason_of_a_restart_is_counted_and_logged(code: int, reason: str) -> None:
    with supervised() as (process, port):
        end(port, code)
        serving(process)
        state = get(port)
    assert state["restarts"] == {reason: 1}
    assert events(process) == [("restarting", reason, code)]


def test_a_crash_loop_is_given_up_with_the_last_exit_code() -> None:
    with supervised(max_restarts=3, fails={"1": 4, "2": 5, "3": 6}) as (process, port):
        end(port, 3)

        assert process.wait() == 6
    names = ["restarting", "restarting", "restarting", "gave up"]
    assert events(process) == [(name, "exit", code) for name, code in zip(names, (3, 4, 5, 6), strict=True)]
    assert [line.get("seconds") for line in process.lines] == [0.0, 0.01, 0.01, None]


def test_giving_up_is_a_failure_whatever_the_last_exit_code() -> None:
    with supervised(max_restarts=1, fails={"1": 0}) as (process, port):
        end(port, 0)

        assert process.wait() == 1


def test_serving_for_long_ends_a_row_of_restarts() -> None:
    with supervised(max_restarts=1, constants={"STABLE_S": 0.0}) as (process, port):
        for _ in range(3):
            end(port, 3)
            serving(process)
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    assert [line["seconds"] for line in process.lines] == [0.0, 0.0, 0.0]


def test_a_process_that_has_never_served_is_not_started_again() -> None:
    with ServerProcess("-m", "tests.server.supervised", json.dumps({"fails": {"0": 2}})) as process:
        assert process.wait() == 2
    assert process.lines == []
    assert process.err == ["loading\n", "supervisor loaded []\n"]


def test_a_stop_while_the_process_loads_again_is_an_orderly_one(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with supervised(gate=gate) as (process, port):
        end(port, 3)
        process.wait_for("loading")
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        get(port)


def test_a_stop_while_the_first_process_loads_is_an_orderly_one(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with ServerProcess("-m", "tests.server.supervised", json.dumps({"gate": gate, "gated": 0})) as process:
        process.wait_for("loading")
        process.signal(signal.SIGTERM)

        assert process.wait() == 0


def test_a_stop_while_a_restart_waits_is_an_orderly_one() -> None:
    with supervised(constants={}, max_restarts=100, fails={str(number): 3 for number in range(1, 100)}) as (
        process,
        port,
    ):
        end(port, 3)
        while json.loads(process.wait_for("restarting"))["seconds"] < 1:
            pass
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        get(port)


def test_the_serving_process_does_not_outlive_a_killed_supervisor() -> None:
    with supervised() as (process, port):
        process.process.kill()
        process.wait_for("stopped")

        assert process.wait() == -signal.SIGKILL  # and the pipes of the other process are closed
    with pytest.raises(ConnectionRefusedError):
        get(port)


def test_sighup_reaches_the_serving_process() -> None:
    with supervised() as (process, port):
        process.signal(signal.SIGHUP)
        process.wait_for("hup")

        assert get(port)["restarts"] == {}


def test_sighup_reaches_a_process_that_was_loading(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with supervised(gate=str(gate)) as (process, port):
        end(port, 3)
        process.wait_for("loading")
        process.signal(signal.SIGHUP)
        gate.write_text("")  # opens once the process does

        process.wait_for("hup")


@pytest.mark.long
def test_a_silent_process_prints_its_stacks_and_is_started_again() -> None:
    with supervised(constants={"PERIOD_S": 0.5, "SILENT_S": 3.0}) as (process, port):
        get(port, "/silent")
        process.wait_for("Fatal Python error: Aborted")
        serving(process)

        assert set(get(port)["restarts"]) == {"hung"}  # a busy machine may hold up the next one, too
    assert any("serve_forever" in line for line in process.err)


REAPING = """
import os, sys
from photonlite.server.supervisor import _reap_orphans

orphan = os.fork()
if not orphan:
    os._exit(0)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
_reap_orphans(child=1)
try:
    os.waitpid(orphan, os.WNOHANG)
except ChildProcessError:
    print("reaped")
child = os.fork()
if not child:
    os._exit(7)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
_reap_orphans(child)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="not on this system")
def test_orphans_are_reaped_and_the_serving_process_is_left_alone() -> None:
    ran = subprocess.run([sys.executable, "-c", REAPING], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["reaped", "7"]

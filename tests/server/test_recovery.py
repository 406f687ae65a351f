"""A real server that loses its card, hangs, and is killed under load, `RECOVERY_KILLS` times: 2 unless set."""

import contextlib
import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.cli.test_serve import TINY
from tests.server.live import GUARD, ServerProcess, wait_until
from tests.server.test_run import JSON

KILLS = int(os.environ.get("RECOVERY_KILLS", "2"))
QUERY = json.dumps({"question": "How many?", "settings": {"max_tokens": 8}}).encode()
LOAD = 8
"""Requests that are open when the process is killed."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix", reason="sockets are handed to new programs on POSIX only"),
]

Answer = tuple[int, dict[str, object]] | None  # None where the connection broke


def ask(port: int, path: str = "/v1/query", body: bytes | None = QUERY) -> Answer:
    method = "GET" if body is None else "POST"
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)) as connection:
        try:
            connection.request(method, path, body, JSON)
            with connection.getresponse() as response:
                return response.status, json.loads(response.read())
        except (ConnectionError, http.client.HTTPException):
            return None


def restarts(port: int) -> dict[str, int]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    counted = (line.removeprefix("photonlite_restarts_total").split() for line in lines if "_restarts_total{" in line)
    return {label.split('"')[1]: int(float(value)) for label, value in counted if float(value)}


def test_a_server_comes_back_when_a_rank_of_its_model_is_killed() -> None:
    serve = ("--model", str(TINY), "--device", "cpu", "--no-check", "--port", "0", "--tensor-parallel", "2")
    with ServerProcess("-m", "photonlite.cli", "serve", *serve) as process:
        port = json.loads(process.wait_for('"listening"'))["port"]
        expected = ask(port)
        [serving] = children(process.process.pid)
        [rank] = [pid for pid in children(serving) if "follower" in " ".join(psutil.Process(pid).cmdline())]
        os.kill(rank, signal.SIGKILL)

        assert json.loads(process.wait_for('"restarting"'))["reason"] == "engine_died"
        found = ask(port)
        assert expected is not None
        assert found is not None
        assert (found[0], found[1]["answer"]) == (200, expected[1]["answer"])
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    wait_until(lambda: not psutil.pid_exists(rank))


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def test_a_server_comes_back_from_a_lost_card_a_hang_and_kills() -> None:
    serve = ("--model", str(TINY), "--device", "cpu", "--no-check", "--image-workers", "1")
    with ServerProcess("-m", "tests.server.sabotaged", *serve) as process, ThreadPoolExecutor(LOAD) as pool:
        port = json.loads(process.wait_for('"listening"'))["port"]
        expected = {}
        for reason in ("engine_died", "hung"):
            # Three steps in a row have to fail until the card counts as lost; one that hangs is enough.
            answers = [ask(port) for _ in range(3)] if reason == "engine_died" else list(pool.map(ask, [port] * LOAD))
            assert all(answer is None or answer[0] in (500, 503) for answer in answers)
            assert json.loads(process.wait_for('"restarting"'))["reason"] == reason
            expected[reason] = 1
            assert restarts(port) == expected  # asked while there is no process
        assert ask(port) is not None
        for _ in range(KILLS):
            [serving] = children(process.process.pid)
            workers = children(serving)
            before = [pool.submit(ask, port) for _ in range(LOAD)]
            before[0].result()  # the others are under way
            os.kill(serving, signal.SIGKILL)
            process.wait_for('"restarting"')
            after = pool.submit(ask, port, "/ready", None)

            for answer in (one.result() for one in before):
                assert answer is None or answer[0] == 200  # broken, or answered before or after
            ready = after.result()
            assert ready is not None
            assert (ready[0], ready[1]["status"]) == (200, "ready")
            assert workers
            wait_until(lambda workers=workers: not any(os.path.exists(f"/proc/{pid}/exe") for pid in workers))
        assert restarts(port) == {**expected, "signal": KILLS}
        answer = ask(port)
        assert answer is not None
        assert answer[0] == 200
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    told = "".join(process.err)
    assert "stuck" in told  # the stacks of the engine that hung
    hung = [line for line in process.lines if line["event"] == "hung"]
    assert [line["what"] for line in hung] == ["step on the device"]

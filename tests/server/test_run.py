"""The end of a server: what is accepted is finished, nothing new begins."""

import asyncio
import contextlib
import gc
import http.client
import io
import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from photonlite.api import VisionModel
from photonlite.config import ImageLimits
from photonlite.errors import EngineDiedError
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.run import DrainingServer, run, serve
from photonlite.server.transport.listening import ListenError, listen
from photonlite.server.transport.logs import json_lines
from photonlite.server.watchdog import ENGINE_DIED
from tests.server.fake import FakeModel
from tests.server.live import GUARD, Live, ServerProcess, live, live_model
from tests.serving import network, on_thread
from tests.serving import serve as serve_tiny

QUERY = json.dumps({"question": "How many?"}).encode()
STREAM = json.dumps({"question": "How many?", "stream": True}).encode()
JSON = {"Content-Type": "application/json"}


def asked(server: Live, fake: FakeModel) -> "Future[Any]":
    """A request whose answer hangs."""
    fake.hang()
    future = on_thread(lambda: server.ask("POST", "/v1/query", QUERY, JSON))
    server.wait(asyncio.wait_for(fake.begun.wait(), GUARD))
    return future


async def until_draining(server: Live) -> None:
    async with asyncio.timeout(GUARD):
        while not server.ingress.draining:
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def opened(port: int, method: str, path: str, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)) as connection:
        connection.request(method, path, body, JSON)
        with connection.getresponse() as response:
            yield response


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    with opened(port, method, path, body) as response:
        return response.status, json.loads(response.read())


def port_of(process: ServerProcess) -> int:
    return int(process.wait_for("serving on").split()[-1])


def test_draining_finishes_accepted_requests_and_admits_none() -> None:
    fake = FakeModel()
    with live(fake, drain_s=GUARD) as server:
        before = asked(server, fake)
        server.begin_to_stop()

        assert server.get("/health")[0] == 200
        status, body = server.get("/ready")
        assert (status, json.loads(body)["reason"]) == (503, "the server is stopping")
        status, body = server.ask("POST", "/v1/query", QUERY, JSON)
        assert (status, json.loads(body)["error"]["type"]) == (503, "unavailable_error")

        assert not server.call(lambda: server.server.should_exit)  # which would close the door
        server.call(fake.release)
        assert before.result(GUARD)[0] == 200
        assert server.stop() == 0
    assert len(fake.calls) == 1


@pytest.mark.long
def test_requests_beyond_the_drain_time_get_503() -> None:
    fake = FakeModel()
    with live(fake, drain_s=0.0) as server:
        before = asked(server, fake)

        assert server.stop() == 0
        status, body = before.result(GUARD)
    assert (status, json.loads(body)["error"]["code"]) == (503, "stopped")
    assert fake.cancelled == 1


def test_an_idle_server_stops_at_once() -> None:
    with live(drain_s=1e6) as server, server.connect():
        assert server.stop() == 0


def test_the_port_is_free_again() -> None:
    with live() as server:
        pass
    with pytest.raises(ConnectionRefusedError):
        server.connect()


class Closing:
    """Records whether it was closed."""

    name, skills, alive, last_tick_s = "closing", ("query",), True, 0.0

    def __init__(self) -> None:
        self.closed = False

    def close(self, *, drain: bool) -> None:
        self.closed = True


def test_the_model_is_closed_whatever_happens() -> None:
    model = Closing()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ListenError, match="in use"):
        serve(model, ServerConfig(port=taken.getsockname()[1]))  # type: ignore[arg-type]

    assert model.closed


def test_images_are_decoded_within_the_servers_limits_and_as_the_model_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, taken = Closing(), []
    model.image_limits = ImageLimits(on_white=True)  # type: ignore[attr-defined]

    def decoding(config: ServerConfig, limits: ImageLimits) -> None:
        taken.append(limits)
        raise ListenError("that is enough")

    monkeypatch.setattr("photonlite.server.run.decoding", decoding)
    with socket.create_server(("127.0.0.1", 0)) as taking, pytest.raises(ListenError, match="enough"):
        serve(model, ServerConfig(), listener=taking, image_limits=ImageLimits(max_side=9))  # type: ignore[arg-type]

    assert taken == [ImageLimits(max_side=9, on_white=True)]


@pytest.mark.usefixtures("unfrozen")
def test_the_garbage_collector_leaves_out_what_was_loaded_while_a_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(DrainingServer, "run", lambda self, sockets: frozen.append(gc.get_freeze_count()))
    config = ServerConfig(port=0)
    with listen(config) as listener:
        assert run(create_app(FakeModel(), config), config, listener) == 0

    assert frozen[0] > 0
    assert gc.get_freeze_count() == 0


@contextlib.contextmanager
def broken_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[VisionModel, list[Exception]]]:
    """A model whose forward pass raises what a test puts into the list."""
    with serve_tiny() as model:
        raised: list[Exception] = []
        forward = network(model).forward

        def broken(*arguments: Any) -> Any:
            if raised:
                raise raised[0]
            return forward(*arguments)

        monkeypatch.setattr(network(model), "forward", broken)
        yield model, raised


def test_a_dead_engine_fails_its_requests_and_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.StringIO()
    with (
        broken_model(monkeypatch) as (model, raised),
        json_lines(lines),
        live_model(model, drain_s=GUARD) as server,
    ):
        raised.append(RuntimeError("the card has fallen off the bus"))
        told = [server.ask("POST", "/v1/query", QUERY, JSON) for _ in range(3)]
        server.thread.join(GUARD)

        assert not server.thread.is_alive()
        assert server.server.exit_code == ENGINE_DIED != 0
    errors = [json.loads(body)["error"] for _, body in told]
    assert [error["code"] for error in errors[:2]] == ["engine_failed"] * 2
    assert errors[2]["code"] in ("engine_failed", "engine_died")
    assert not any(b"fallen off the bus" in body for _, body in told)
    written = [json.loads(line) for line in lines.getvalue().splitlines()]
    faults = [line for line in written if "fallen off the bus" in line.get("exception", "")]
    assert {line["level"] for line in faults} >= {"error", "critical"}
    assert all("Traceback" in line["exception"] for line in faults)
    assert [line["exit_code"] for line in written if line["event"] == "engine died"] == [ENGINE_DIED]


def test_open_callers_of_an_engine_that_dies_get_503() -> None:
    fake = FakeModel()
    with live(fake, drain_s=GUARD) as server:
        before = asked(server, fake)

        def die() -> None:
            fake.alive = False

        server.call(die)
        assert server.wait(until_draining(server)) is None
        assert [server.get(path)[0] for path in ("/health", "/ready")] == [503, 503]
        assert json.loads(server.ask("POST", "/v1/query", QUERY, JSON)[1])["error"]["code"] == "engine_died"
        fake.failure = EngineDiedError("the engine has stopped")
        server.call(fake.release)
        status, body = before.result(GUARD)
        assert (status, json.loads(body)["error"]["code"]) == (503, "engine_died")
        server.thread.join(GUARD)
        assert server.server.exit_code == ENGINE_DIED


def test_a_signal_after_the_engine_died_keeps_its_exit_code() -> None:
    fake = FakeModel()
    with live(fake) as server:
        fake.alive = False
        assert server.stop() in (ENGINE_DIED, 128 + signal.SIGTERM)


def test_out_of_memory_fails_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with broken_model(monkeypatch) as (model, raised), live_model(model) as server:
        raised.append(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 TB"))
        for _ in range(4):
            status, body = server.ask("POST", "/v1/query", QUERY, JSON)
            assert (status, json.loads(body)["error"]["code"]) == (503, "out_of_memory")
            assert b"DefaultCPUAllocator" not in body
        raised.clear()

        assert server.ask("POST", "/v1/query", QUERY, JSON)[0] == 200
        assert server.get("/health")[0] == 200


@pytest.mark.long
def test_sigterm_in_the_middle_of_a_request() -> None:
    with ServerProcess.fake(drain_s=GUARD) as process:
        port = port_of(process)
        before = on_thread(lambda: ask(port, "POST", "/v1/query", QUERY))
        process.wait_for("begun")
        process.signal(signal.SIGTERM)
        process.wait_for('"stopping"')
        assert ask(port, "GET", "/ready")[0] == 503
        process.release()
        status, answer = before.result(GUARD)
        assert (status, answer["answer"]) == (200, "two of them")

        assert process.wait() == 0
    [request] = [line for line in process.lines if line.get("route") == "/v1/query"]
    assert (request["status"], request["bytes_in"]) == (200, len(QUERY))
    assert process.lines[-1]["event"] == "stopped"
    assert process.lines[-1]["unfinished"] == 0


@pytest.mark.long
def test_sigterm_in_the_middle_of_a_stream() -> None:
    with ServerProcess.fake(drain_s=GUARD) as process:
        with opened(port_of(process), "POST", "/v1/query", STREAM) as response:
            first = response.readline()
            process.signal(signal.SIGTERM)
            process.wait_for('"stopping"')
            process.release()
            rest = response.read()

        assert process.wait() == 0
    events = [json.loads(line.removeprefix(b"data: ")) for line in (first + rest).splitlines() if line]
    assert "".join(event.get("chunk", "") for event in events) == "two of them"
    assert events[-1]["completed"]


@pytest.mark.long
def test_a_second_signal_drops_everything() -> None:
    with ServerProcess.fake(drain_s=GUARD) as process:
        port = port_of(process)
        before = on_thread(lambda: ask(port, "POST", "/v1/query", QUERY))
        process.wait_for("begun")
        process.signal(signal.SIGTERM)
        process.wait_for('"stopping"')
        process.signal(signal.SIGTERM)

        assert process.wait() == 128 + signal.SIGTERM
        assert isinstance(before.exception(GUARD), ConnectionError | http.client.HTTPException)
    assert process.err == [f"serving on {port}\n", "begun\n"]
    assert [line for line in process.lines if line.get("level") == "error"] == []


@pytest.mark.long
def test_interrupting_an_idle_server_is_an_orderly_stop() -> None:
    with ServerProcess.fake() as process:
        port_of(process)
        process.signal(signal.SIGINT)

        assert process.wait() == 0
    assert "".join(process.err).count("\n") == 1


STUCK = """
import asyncio, sys, threading
from photonlite.server import run as module
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.transport.listening import listen
from tests.server.fake import FakeModel
from tests.server.told import say

class Stuck(FakeModel):
    async def run(self, call):
        work = asyncio.to_thread(threading.Event().wait)
        say("begun")
        return await work

module._STUCK_S = 0.5
config = ServerConfig(port=0, drain_s=0.0)
start = lambda host, port: say(f"serving on {port}")
sys.exit(module.run(create_app(Stuck(), config), config, listen(config), on_start=start, guard=module.end_process_in))
"""


@pytest.mark.long
def test_the_guard_ends_a_process_with_a_stuck_thread() -> None:
    with ServerProcess("-c", STUCK) as process:
        on_thread(lambda: ask(port_of(process), "POST", "/v1/query", QUERY))
        process.wait_for("begun")
        process.signal(signal.SIGTERM)

        assert process.wait() == 1
    told = "".join(process.err)
    assert "Timeout (0:00:00.500000)!" in told
    assert "threading.py" in told  # it shows what the thread was doing


RELOADING = """
import dataclasses, sys
from pathlib import Path
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.config import read_access
from photonlite.server.transport.listening import listen
from photonlite.server.transport.logs import json_lines
from photonlite.server.run import run
from tests.server.fake import FakeModel
from tests.server.told import say

path = Path(sys.argv[1])
config = ServerConfig(port=0, drain_s=0.0, **read_access(path))
reload = lambda: dataclasses.replace(config, **read_access(path))
start = lambda host, port: say(f"serving on {port}")
with json_lines(sys.stdout):
    sys.exit(run(create_app(FakeModel(), config), config, listen(config), on_start=start, reload=reload))
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_reloads_the_keys_and_keeps_the_old_ones_on_failure(tmp_path: Path) -> None:
    path, first, second = tmp_path / "keys", "first-key-0123456789", "second-key-0123456789"

    def write(text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)

    def statuses() -> list[int]:
        headers = ({**JSON, "X-Moondream-Auth": key} for key in (first, second))
        return [status_of(port, QUERY, one) for one in headers]

    write(first)
    with ServerProcess("-c", RELOADING, str(path)) as process:
        port = port_of(process)
        assert statuses() == [200, 401]
        write(second)
        process.signal(signal.SIGHUP)
        assert json.loads(process.wait_for("keys reloaded"))["keys"] == 1
        assert statuses() == [401, 200]
        write("short")
        process.signal(signal.SIGHUP)
        line = process.wait_for("keys not reloaded")
        assert "has 5 characters" in json.loads(line)["reason"]
        assert statuses() == [401, 200]
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    assert all(key not in line for key in (first, second) for line in (*process.out, *process.err))


def status_of(port: int, body: bytes, headers: dict[str, str]) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)) as connection:
        connection.request("POST", "/v1/query", body, headers)
        return connection.getresponse().status


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_without_a_key_file_changes_nothing() -> None:
    with ServerProcess.fake(drain_s=0.0) as process:
        port_of(process)
        process.signal(signal.SIGHUP)
        assert "without a key file" in process.wait_for("keys not reloaded")
        process.signal(signal.SIGTERM)

        assert process.wait() == 0


@pytest.mark.long
@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="limits of another process are set on Linux only")
def test_without_descriptors_connections_wait_and_the_log_stays_short() -> None:
    with ServerProcess.fake() as process, contextlib.ExitStack() as waiting:
        port = port_of(process)
        kept = waiting.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)))
        kept.request("GET", "/health")
        kept.getresponse().read()
        serving = psutil.Process(process.process.pid)
        before = serving.rlimit(psutil.RLIMIT_NOFILE)
        serving.rlimit(psutil.RLIMIT_NOFILE, (serving.num_fds(), before[1]))
        for _ in range(100):
            waiting.enter_context(socket.create_connection(("127.0.0.1", port), timeout=GUARD))
        process.wait_for("out of system resource")
        kept.request("GET", "/health")
        kept.getresponse().read()  # the event loop has turned: it has tried once
        serving.rlimit(psutil.RLIMIT_NOFILE, before)

        assert ask(port, "GET", "/health")[0] == 200
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert sum("out of system resource" in line for line in process.out) < 300

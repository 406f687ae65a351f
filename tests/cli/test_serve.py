"""`photonlite serve`: what is refused before it begins, what it says, and a real run of it."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from photonlite.cli import main
from photonlite.cli.parser import parse
from photonlite.cli.serve import _say, greeting, load_served
from photonlite.cli.settings import read_settings
from photonlite.errors import AdapterError, InputError
from photonlite.server.config import ServerConfig
from photonlite.server.link import VARIABLE
from photonlite.server.watchdog import FROZEN_S, Watchdog
from tests.models.checkpoints import golden_tensors, make_folder
from tests.server.live import GUARD, ServerProcess

from .conftest import FakeModel

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "golden" / "moondream-tiny"
KEY = "0123456789abcdef"


def config(*arguments: str) -> ServerConfig:
    return read_settings(parse(["serve", *arguments]), {}).server


def test_without_options_the_defaults_apply() -> None:
    assert config() == ServerConfig()


class Loading:
    """What `photonlite.load` returns here: takes adapters."""

    def __init__(self) -> None:
        self.adapters: list[tuple[str, str | None]] = []
        self.closed = False

    def load_adapter(self, adapter: str, *, name: str | None = None) -> None:
        if adapter == "missing":
            raise AdapterError("there is no such folder")
        self.adapters.append((adapter, name))

    def close(self, *, drain: bool) -> None:
        self.closed = True


def test_adapters_are_loaded_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading()
    monkeypatch.setattr("photonlite.load", lambda *_, **__: loading)
    flags = ["--adapter", "shelf=adapters/shelf", "--adapter", "other=owner/name", "third=a=b"]
    load_served(read_settings(parse(["serve", *flags]), {}))
    assert loading.adapters == [("adapters/shelf", "shelf"), ("owner/name", "other"), ("a=b", "third")]
    load_served(read_settings(parse(["serve"]), {"PHOTONLITE_ADAPTERS": "shelf=x,other=y"}))
    assert loading.adapters[3:] == [("x", "shelf"), ("y", "other")]
    with pytest.raises(InputError, match=r"--adapter is 'shelf': give NAME=PATH"):
        load_served(read_settings(parse(["serve", "--adapter", "shelf"]), {}))
    assert not loading.closed  # nothing was loaded
    with pytest.raises(AdapterError):
        load_served(read_settings(parse(["serve", "--adapter", "shelf=missing"]), {}))
    assert loading.closed


def test_options_reach_the_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"# of the robots\n{KEY}\n\n  {KEY[::-1]}  \n")
    keys.chmod(0o600)

    made = config(
        *("--host", "0.0.0.0", "--port", "8000", "--api-key-file", str(keys), "--drain-seconds", "1.5"),
        *("--max-body-mb", "0.5", "--requests-per-minute", "7", "--max-open", "9"),
        *("--allow-url-host", "a.example", "b.example", "--cors-origin", "https://c.example"),
        *("--allow-host", "robot.local", "192.168.0.7"),
    )

    assert made == ServerConfig(
        host="0.0.0.0",
        port=8000,
        api_keys=(KEY, KEY[::-1]),
        drain_s=1.5,
        max_body_bytes=512 * 1024,
        requests_per_minute=7,
        max_open=9,
        url_hosts=("a.example", "b.example"),
        cors_origins=("https://c.example",),
        allow_hosts=("robot.local", "192.168.0.7"),
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--host", "0.0.0.0"], "there are no API keys: give keys (--api-key-file)"),
        (["--port", "70000"], "it must be a whole number from 0 to 65535"),
        (["--port", "http"], "--port is 'http': give a whole number"),
        (["--max-body-mb", "0"], "--max-body-mb is 0: give a number above 0"),
        (["--max-body-mb", "nan"], "--max-body-mb is nan"),
        (["--drain-seconds", "-1"], "'drain_s' is -1.0"),
        (["--api-key-file", "/no/such/file"], "the key file '/no/such/file' cannot be read (No such file"),
        (["--allow-url-host", "https://a.example"], "without https://"),
        (["desk.png"], "unrecognized arguments: desk.png"),
    ],
)
def test_bad_settings_exit_with_2_and_one_line(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["serve", *arguments]) == 2

    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1
    assert fake.loaded == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"# none yet\n\n", "holds no key"), (b"hunter2\n", "has 7 characters"), (b"\xff\xfe\x00", "no text")],
)
def test_an_unusable_key_file_is_refused_without_quoting_keys(
    fake: FakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, complaint: str
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_bytes(content)
    keys.chmod(0o600)

    assert main(["serve", "--api-key-file", str(keys)]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert "hunter2" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_stderr_without_space_keeps_no_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        _say("loading ...")
        with pytest.raises(OSError, match="No space"):  # it is full
            print("loading ...", file=sys.stderr)


def test_a_port_in_use_is_reported_before_the_model_is_loaded(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        assert main(["serve", "--port", str(port)]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"port {port} is in use" in err
    assert fake.loaded == []


def test_a_missing_package_is_reported_with_what_to_install(
    fake: FakeModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> Any:
        if name.startswith("photonlite.server"):
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return import_module(name)

    monkeypatch.setattr("photonlite.cli.run.import_module", refuse)

    assert main(["serve"]) == 2
    assert "'uvicorn', which is not installed: pip install 'photonlite[serve]'" in capsys.readouterr().err


def test_results_of_the_server_keep_no_thumbnails(fake: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("photonlite.server.run.serve", lambda *_, **__: 0)

    assert main(["serve", "--port", "0", "--no-supervise"]) == 0
    assert fake.loaded[0]["thumbnails"] is False


def test_a_process_without_a_supervisor_is_watched_and_begins_without_restarts(
    fake: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("photonlite.server.run.serve", lambda *_, **options: given.update(options) or 0)

    assert main(["serve", "--port", "0", "--no-supervise", "--hang-seconds", "7"]) == 0
    assert given["restarts"] == {}
    assert isinstance(given["watchdog"], Watchdog)
    assert fake.loaded[0]["device"] == "auto"


@pytest.mark.skipif(sys.platform != "linux", reason="systemd's socket")
def test_a_process_of_systemd_says_when_it_serves_and_that_it_lives(
    fake: FakeModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_off: list[float] = []

    def serve(*_: Any, **options: Any) -> int:
        options["on_start"]("127.0.0.1", 5)
        options["watchdog"]._beat()
        options["watchdog"]._put_off()
        return 0

    fake.name = "nano"  # type: ignore[attr-defined]
    monkeypatch.setattr("photonlite.server.run.serve", serve)
    monkeypatch.setattr("photonlite.server.run.end_process_in", put_off.append)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(GUARD)
        systemd.bind(str(tmp_path / "notify"))
        assert main(["serve", "--port", "0", "--no-supervise", "--hang-seconds", "7"]) == 0
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
    assert put_off == [7 + FROZEN_S]


def supervised(monkeypatch: pytest.MonkeyPatch, device: str | None) -> socket.socket:
    """Make this process look like one that a supervisor has started; returns the supervisor's end."""
    mine, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        files = {"listener": os.dup(listener.fileno()), "link": theirs.detach()}
    monkeypatch.setenv(VARIABLE, json.dumps({**files, "restarts": {"hung": 1}, "device": device}))
    monkeypatch.setattr("photonlite.cli.serve.faulthandler.enable", lambda file: os.close(file))
    return mine


@pytest.mark.parametrize(("served_on", "device"), [(None, "auto"), ("cuda:0", "cuda:0")])
def test_a_supervised_process_reports_its_device_and_keeps_to_the_first_ones(
    fake: FakeModel,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    served_on: str | None,
    device: str,
) -> None:
    """Where the card is gone, "auto" would go on with the CPU."""
    given: dict[str, Any] = {}

    def serve(model: Any, config: ServerConfig, **options: Any) -> int:
        given.update(options)
        options["on_start"]("127.0.0.1", 5)
        return 0

    fake.name = "nano"  # type: ignore[attr-defined]
    monkeypatch.setattr("photonlite.server.run.serve", serve)
    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with supervised(monkeypatch, served_on) as link:
            assert main(["serve"]) == 0
            assert link.recv(100) == b"ready cpu\n"
        assert ended.wait(GUARD)  # the supervisor has ended
    finally:
        signal.signal(signal.SIGTERM, before)
    given["listener"].close()
    assert fake.loaded[0]["device"] == device
    assert given["restarts"] == {"hung": 1}


def test_a_missing_module_of_photonlite_is_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'photonlite.lost'", name="photonlite.lost")

    monkeypatch.setattr("photonlite.cli.run.import_module", refuse)

    with pytest.raises(ModuleNotFoundError):
        main(["serve"])


def test_help_needs_none_of_the_servers_packages() -> None:
    code = (
        "import sys; from photonlite.cli import main; main(['serve', '--help']); "
        "print(sorted({'starlette', 'uvicorn', 'torch', 'prometheus_client'} & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ran.stderr == "[]\n"
    assert "--drain-seconds" in ran.stdout


@pytest.mark.parametrize(
    ("settings", "host", "expected"),
    [
        ({}, "127.0.0.1", ("http://127.0.0.1:2020/", "this machine, without an API key")),
        ({"host": "::1"}, "::1", ("http://[::1]:2020/",)),
        (
            {"host": "0.0.0.0", "api_keys": (KEY,)},
            "0.0.0.0",
            ("http://127.0.0.1:2020/", "every machine that can reach it, with an API key"),
        ),
    ],
)
def test_the_greeting_names_address_access_and_how_to_stop(
    settings: dict[str, Any], host: str, expected: tuple[str, ...]
) -> None:
    text = greeting(ServerConfig(**settings), "nano", host, 2020)

    assert all(part in text for part in (*expected, "nano", "Ctrl+C", "20 s"))
    assert KEY not in text


@pytest.mark.long
def test_a_real_run_answers_logs_and_stops() -> None:
    arguments = ("-m", "photonlite.cli", "serve", "--port", "0", "--model", str(TINY), "--device", "cpu")
    with ServerProcess(*arguments) as process:
        page = process.wait_for("playground").split()[-1]
        with urllib.request.urlopen(f"{page}ready", timeout=GUARD) as answer:
            assert json.load(answer)["status"] == "ready"
        with urllib.request.urlopen(f"{page}metrics", timeout=GUARD) as answer:
            assert b"photonlite_engine_pages_usable" in answer.read()
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
    events = [line["event"] for line in process.lines]
    assert events == ["listening", "request", "request", "stopping", "stopped"]
    assert all("Traceback" not in line for line in process.err)


@pytest.mark.long
@pytest.mark.parametrize(("flags", "ends"), [((), True), (("--no-check",), False)])
def test_a_checkpoint_with_nan_is_served_only_with_no_check(tmp_path: Path, flags: tuple[str, ...], ends: bool) -> None:
    tensors = golden_tensors()
    tensors["model.text.lm_head.weight"].fill_(torch.nan)
    folder = make_folder(tmp_path / "model", tensors)
    where = ("--model", str(folder), "--port", "0", "--device", "cpu")
    with ServerProcess("-m", "photonlite.cli", "serve", *where, *flags) as process:
        if ends:
            assert process.wait() == 2
            assert "not finite" in "".join(process.err)
            assert process.out == []
        else:
            process.wait_for("photonlite serves")

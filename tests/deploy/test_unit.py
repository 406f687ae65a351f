"""The unit for systemd, and its environment file."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from photonlite.cli import BAD_INPUT
from photonlite.cli.parser import parse
from photonlite.server.config import ServerConfig
from photonlite.server.run import ENGINE_DIED
from photonlite.server.watchdog import FROZEN_S, HANG_S
from tests.deploy.files import DEPLOY, LONGEST_STOP_S, settings_of, text_of

ANALYZE = shutil.which("systemd-analyze")


def version_of_systemd() -> int:
    """Return the number that `systemd-analyze --version` begins with, as in "systemd 252 (...)"; 0 without it."""
    if ANALYZE is None:
        return 0
    told = subprocess.run([ANALYZE, "--version"], capture_output=True, text=True).stdout
    found = re.match(r"systemd (\d+)", told)
    return int(found[1]) if found else 0


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text_of("photonlite.service"))
    return parser


SERVICE = unit()["Service"]


def variables(*, commented: bool) -> dict[str, str]:
    """Return those of the environment file, with or without those that are switched off."""
    lines = text_of("photonlite.env").splitlines()
    found = (re.fullmatch(r"(#?)([A-Z_]+)=(\S*)", line) for line in lines)
    return {match[2]: match[3] for match in found if match and (commented or not match[1])}


def test_it_starts_the_server() -> None:
    program, *arguments = SERVICE["ExecStart"].split()

    assert Path(program).is_absolute()
    assert Path(program).name == "photonlite"
    assert parse(arguments).command == "serve"


def test_systemd_is_told_when_it_serves_and_that_it_lives() -> None:
    assert SERVICE["Type"] == "notify"
    assert SERVICE["TimeoutStartSec"] == "infinity"  # a model may be downloaded first
    # Its own end of a frozen process comes first, with the stacks.
    assert float(SERVICE["WatchdogSec"]) > HANG_S["cuda"] + FROZEN_S


def test_it_starts_again_after_what_a_start_cures() -> None:
    prevented = set(map(int, SERVICE["RestartPreventExitStatus"].split()))

    assert SERVICE["Restart"] == "on-failure"
    assert prevented == {BAD_INPUT}
    assert prevented.isdisjoint({1, ENGINE_DIED})
    assert f"# {ENGINE_DIED}: the engine died." in text_of("photonlite.service")
    assert "SuccessExitStatus" not in SERVICE


def test_one_process_gets_one_signal_and_the_time_to_drain() -> None:
    assert (SERVICE["KillMode"], SERVICE["KillSignal"]) == ("mixed", "SIGTERM")
    assert float(SERVICE["TimeoutStopSec"]) > LONGEST_STOP_S


def test_the_environment_is_understood(tmp_path: Path) -> None:
    given = dict(pair.split("=", 1) for pair in SERVICE["Environment"].split())
    found = settings_of(given | variables(commented=False), tmp_path)

    assert (found.server.host, found.server.port) == ("0.0.0.0", ServerConfig().port)
    assert found.server.api_keys
    assert not found.choice.supervise  # two supervisors would start it twice as often
    credential, _, path = SERVICE["LoadCredential"].partition(":")
    assert given["PHOTONLITE_API_KEY_FILE"] == f"%d/{credential}"
    assert path.startswith("/etc/photonlite/")
    everything = settings_of(given | variables(commented=True), tmp_path)
    assert everything.choice.model is not None
    assert everything.choice.device == "cuda"


@pytest.mark.skipif(version_of_systemd() < 250, reason="needs systemd-analyze of systemd 250 or later: --offline")
def test_systemd_understands_it_and_finds_it_hardened(tmp_path: Path) -> None:
    copy = tmp_path / "photonlite.service"
    copy.write_text(text_of("photonlite.service").replace("/opt/photonlite/bin/photonlite", sys.executable))
    verified = subprocess.run([str(ANALYZE), "verify", str(copy)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")

    judged = [str(ANALYZE), "security", "--offline=true", "--threshold=20", str(DEPLOY / "photonlite.service")]
    assert subprocess.run(judged, capture_output=True).returncode == 0

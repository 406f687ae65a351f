"""The Dockerfile. No image is built here: its instructions are checked, and its commands run in this environment."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from photonlite.cli.parser import parse
from photonlite.server.config import ServerConfig
from tests.deploy.files import (
    LONGEST_STOP_S,
    PROJECT,
    ROOT,
    command,
    environment,
    instructions,
    one,
    settings_of,
    stage,
    text_of,
)
from tests.server.live import GUARD, Live, live

ARGS = dict(rest.split("=") for name, rest in instructions() if name == "ARG" and "=" in rest)
COPIED = [rest.split() for name, rest in stage("build") if name == "COPY"]


def test_the_last_stage_runs_the_server_as_an_ordinary_user() -> None:
    assert int(one("USER").partition(":")[0]) >= 1000
    assert command("ENTRYPOINT") == ["tini", "--", "photonlite"]
    assert parse(command("CMD")).command == "serve"


def test_both_variants_are_stages_on_one_pinned_image() -> None:
    bases = [rest for name, rest in instructions() if name == "FROM"]

    assert bases[-1] == "${VARIANT}"
    assert {base.partition(" AS ")[2] for base in bases} == {"build", "cpu", "cuda", ""}
    images = {base.split()[0] for base in bases if base.split()[0] not in ("cpu", "${VARIANT}")}
    assert images == {"python:${PYTHON}-slim-bookworm"}
    assert ARGS["VARIANT"] == "cpu"
    assert f"Programming Language :: Python :: {ARGS['PYTHON']}" in PROJECT["project"]["classifiers"]


@pytest.mark.parametrize("name", ["build", "cpu", "cuda", ""])
def test_stages_follow_the_rules_of_linters(name: str) -> None:
    for instruction, rest in stage(name):
        assert instruction not in ("ADD", "MAINTAINER")
        if instruction == "WORKDIR":
            assert rest.startswith("/")
        if instruction == "RUN":
            assert not re.search(r"\b(sudo|cd|ssh)\b", rest)
            assert rest.count("apt-get install") == rest.count("--no-install-recommends") == rest.count("rm -rf /var/")
            # A failure in the middle of a command must fail the build.
            assert not re.search(r"[^;]\|[^|]|; (?!then|fi)", rest.replace("||", "")), rest


def test_the_environment_is_understood_and_needs_keys_or_expose(tmp_path: Path) -> None:
    found = settings_of(environment(), tmp_path, "--expose")

    assert (found.server.host, found.server.port) == ("0.0.0.0", ServerConfig().port)
    assert one("EXPOSE") == str(ServerConfig().port)
    assert settings_of({**environment(), "PHOTONLITE_API_KEY_FILE": "keys"}, tmp_path).server.api_keys


def test_the_commands_in_its_head_leave_time_to_drain() -> None:
    times = [int(found) for found in re.findall(r"--stop-timeout (\d+)", text_of("Dockerfile"))]

    assert len(times) == 2
    assert min(times) > LONGEST_STOP_S


def test_extras_are_extras() -> None:
    assert set(ARGS["EXTRAS"].split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def is_sent(path: str) -> bool:
    """Whether a path of the repository is part of the build's context."""
    sent = True
    for line in text_of("Dockerfile.dockerignore").split():
        pattern = line.removeprefix("!").removeprefix("**/")
        if fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern}/") or pattern in Path(path).parts:
            sent = line.startswith("!")
    return sent


def test_what_is_copied_is_there_and_is_sent() -> None:
    for *sources, _ in COPIED:
        for source in sources:
            assert (ROOT / source).exists()
            assert is_sent(source)
    assert not any(map(is_sent, (".git/config", "tests/conftest.py", "keys", "photonlite/__pycache__/errors.pyc")))


@pytest.mark.long
def test_what_is_copied_builds_the_package_with_its_checkpoint(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    for *sources, target in COPIED:
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, context / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, context / target)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "wheel")]
    subprocess.run(build, cwd=context, check=True, capture_output=True)

    [wheel] = (tmp_path / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        assert "photonlite/assets/nano/model.safetensors" in packed.namelist()


def check(server: Live) -> int:
    python, *words = command("HEALTHCHECK")
    assert python == "python"
    environ = {**os.environ, "PHOTONLITE_PORT": str(server.port)}
    words = [word.replace("timeout=4", f"timeout={GUARD}") for word in words]
    return subprocess.run([sys.executable, *words], env=environ, capture_output=True, timeout=GUARD).returncode


def test_the_health_check_tells_whether_the_server_is_ready() -> None:
    with live(api_keys=("a-key",)) as server:
        assert check(server) == 0
        server.ingress.draining = True
        assert check(server) == 1

"""The files in assets/deploy, read."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from photonlite.cli.parser import parse
from photonlite.cli.settings import ServeSettings, read_settings
from photonlite.server.config import ServerConfig
from photonlite.server.run import _CLOSING_S, _STUCK_S

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "assets" / "deploy"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LONGEST_STOP_S: Final = ServerConfig().drain_s + _STUCK_S + _CLOSING_S
"""Seconds from SIGTERM to the end of a server with the default time to drain, a stuck thread included."""
KEY: Final = "0123456789abcdef"


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(text_of(name)))


def settings_of(environ: Mapping[str, str], folder: Path, *arguments: str) -> ServeSettings:
    """Return what `photonlite serve` makes of an environment, with a key file in the place of the one it names."""
    keys = folder / "keys"
    keys.write_text(KEY)
    keys.chmod(0o400)
    found = {name: str(keys) if name == "PHOTONLITE_API_KEY_FILE" else value for name, value in environ.items()}
    return read_settings(parse(["serve", *arguments]), found)


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions: name and the rest, in one line."""
    lines = [line for line in text_of("Dockerfile").splitlines() if line and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage by its name, or of the last one by an empty name."""
    found: list[tuple[str, str]] = []
    inside = False
    for instruction, rest in instructions():
        if instruction == "FROM":
            inside = rest.partition(" AS ")[2] == name
        elif inside:
            found.append((instruction, rest))
    return found


def one(instruction: str, stage_name: str = "") -> str:
    [found] = [rest for name, rest in stage(stage_name) if name == instruction]
    return found


def environment() -> dict[str, str]:
    """Return the variables that the image sets."""
    return dict(pair.split("=", 1) for pair in one("ENV").split())


def command(instruction: str) -> list[str]:
    """Return the words of ENTRYPOINT, CMD or HEALTHCHECK, which are written as JSON: no shell stands in between."""
    rest = one(instruction)
    words: list[str] = json.loads(rest[rest.index("[") :])
    return words

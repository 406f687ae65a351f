"""Settings of `photonlite serve`, from flags, environment variables and a TOML file.

A flag goes before an environment variable, that before the file, and that before the default. The file:

```toml
port = 8000
max_open = 512

[engine]
max_batch = 32

[images]
max_pixels = 20_000_000
```
"""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from photonlite.config import EngineConfig, ImageLimits
from photonlite.errors import InputError
from photonlite.server.config import ServerConfig
from photonlite.server.limits.key_file import read_keys
from photonlite.settings import (
    PREFIX,
    Given,
    build,
    from_assignments,
    from_environment,
    from_table,
    settings_of,
    unknown_name,
)

CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
"""Environment variable that names the file."""

_OTHER_VARIABLES: Final = (CONFIG_VARIABLE, f"{PREFIX}API_KEY")
"""No settings: the file, and what clients keep their key in by the examples of the playground."""

# What Kubernetes sets in every container for a service named "photonlite".
_KUBERNETES: Final = re.compile(rf"{PREFIX}(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_ADDRESS_OF_KUBERNETES: Final = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which model is served, and to whom.

    Attributes:
        model: A folder, a .safetensors file or a Hub id; none for the shipped checkpoint.
        revision: Branch, tag or commit of a Hub id.
        device: auto, cpu, cuda, cuda:1, ...
        dtype: auto, float32, float16 or bfloat16.
        api_key_file: File of API keys, one a line; requests without one of them are refused.
        check: Whether every skill and head is tried before the server answers; a checkpoint that gives NaN is refused.
    """

    model: str | None = None
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    api_key_file: str | None = None
    check: bool = True


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything that `photonlite serve` is told.

    Attributes:
        choice: The model, and the file of keys.
        server: Address, access and limits.
        engine: How the engine runs.
        images: How large an image may be.
    """

    choice: Choice
    server: ServerConfig
    engine: EngineConfig
    images: ImageLimits


def read_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> ServeSettings:
    """Read the settings from the command line, the environment and the file.

    Args:
        options: What `photonlite.cli.parser.parse` returned for `serve`.
        environ: Environment variables.

    Raises:
        InputError: The file of settings or that of keys cannot be used.
        SettingsError: A name is unknown, a value is out of its range, or the server would answer strangers.
    """
    environ = _own(environ)
    file = options.config or environ.get(CONFIG_VARIABLE)
    tables = {} if file is None else _read_file(Path(file))
    where = f"the file {file!r}"

    def given(cls: type, table: str) -> dict[str, Given]:
        place = f"[{table}] of {where}" if table in ("engine", "images") else where
        return from_table(cls, tables.get(table, {}), place) | from_environment(cls, environ)

    choice = build(Choice, given(Choice, "choice") | _flags(Choice, options))
    keys = {} if choice.api_key_file is None else read_keys(Path(choice.api_key_file))
    access = {"api_keys": tuple(keys), "key_weights": {key: weight for key, weight in keys.items() if weight != 1}}
    engine = from_assignments(EngineConfig, options.engine, "--engine")
    return ServeSettings(
        choice,
        build(ServerConfig, given(ServerConfig, "server") | _flags(ServerConfig, options), **access),
        build(EngineConfig, given(EngineConfig, "engine") | engine),
        build(ImageLimits, given(ImageLimits, "images") | _flags(ImageLimits, options)),
    )


def _flags(cls: type, options: argparse.Namespace) -> dict[str, Given]:
    """Return the settings of a dataclass that flags have set."""
    found = {}
    for name, setting in settings_of(cls).items():
        value = getattr(options, name, None)
        if isinstance(value, list):
            value = tuple(one for text in value for one in setting.read(text, setting.flag))
        elif isinstance(value, str):
            value = setting.read_flag(value)
        if value is not None:
            found[name] = Given(value, setting.flag)
    return found


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a file of settings; what stands outside of tables is split between "choice" and "server"."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise InputError(f"the file {str(path)!r} cannot be read ({cause.strerror}): give a TOML file") from cause
    except ValueError as cause:
        raise InputError(f"the file {str(path)!r} is not TOML: {cause}") from cause
    tables: dict[str, dict[str, Any]] = {"choice": {}, "server": {}}
    known = {"choice": settings_of(Choice), "server": settings_of(ServerConfig)}
    for name, value in content.items():
        table = next((table for table, names in known.items() if name in names), None)
        if name in ("engine", "images") and isinstance(value, dict):
            tables[name] = value
        elif table is None:
            names = [*known["choice"], *known["server"], "engine", "images"]
            raise unknown_name(f"{name!r} in the file {str(path)!r}", name, names)
        else:
            tables[table][name] = value
    return tables


def _own(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are photonlite's.

    Raises:
        SettingsError: One is not a setting: whoever set it believes that it counts.
    """
    classes = (Choice, ServerConfig, EngineConfig, ImageLimits)
    known = {setting.variable for cls in classes for setting in settings_of(cls).values()} | set(_OTHER_VARIABLES)
    found = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or _KUBERNETES.fullmatch(name) or _ADDRESS_OF_KUBERNETES.match(value):
            continue
        if name not in known:
            names = {one.removeprefix(PREFIX).lower() for one in sorted(known)}
            raise unknown_name(f"the environment variable {name}", name.removeprefix(PREFIX), names)
        found[name] = value
    return found

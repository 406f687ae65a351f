"""Settings of `photonlite serve`: flags override environment variables, which override a TOML file."""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from photonlite.config import EngineConfig, ImageLimits, VisionWeights, Weights
from photonlite.errors import InputError
from photonlite.server.config import ServerConfig, read_access
from photonlite.settings import (
    MIB,
    PREFIX,
    Given,
    Setting,
    build,
    from_assignments,
    from_environment,
    from_table,
    setting,
    settings_of,
    unknown_name,
)

CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
TABLES: Final[Mapping[type, str]] = {EngineConfig: "engine", ImageLimits: "images"}
"""Tables of the file; all other settings stand at its top."""
# Settings of the engine with flags of their own.
_OWN_FLAGS: Final = (
    "tensor_parallel", "router", "batching", "encoding", "encode_sms", "realtime_part", "tuning", "swap_bytes", "store",
    "store_bytes",
)  # fmt: skip
# Variables that are no settings: the file's name, and a client's key as in the playground's examples.
_OTHER_VARIABLES: Final = (CONFIG_VARIABLE, f"{PREFIX}API_KEY")
# Kubernetes sets these in every container for a service named "photonlite".
_KUBERNETES: Final = re.compile(rf"{PREFIX}(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_ADDRESS_OF_KUBERNETES: Final = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Choice:
    """The served model, and the file of keys.

    Attributes:
        model: A folder, a .safetensors file or a Hub id; by default the shipped checkpoint.
        revision: Branch, tag or commit of a Hub id.
        device: auto, cpu, cuda, cuda:1, ...
        dtype: auto, float32, float16 or bfloat16.
        weights: Of the text decoder: "auto" as the files have them, "int8", "fp8", "int4", or "fit", the best that fit.
        vision_weights: Of the image encoder: "auto", "int8" or "fp8".
        sampling: What answers in words begin with: "greedy", or "checkpoint", the model's generation_config.json.
        adapters: LoRA adapters to load at the start, as NAME=PATH, where PATH may be a Hub id too.
        api_key_file: File of API keys, one a line; requests without one of them are refused.
        check: Whether every skill and head is tried before the server answers; a checkpoint with NaN is refused.
        supervise: Whether a second process keeps the port, and starts the serving one again when it dies or hangs.
    """

    model: str | None = None
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    weights: Weights = "auto"
    vision_weights: VisionWeights = "auto"
    sampling: Literal["greedy", "checkpoint"] = "greedy"
    adapters: tuple[str, ...] = setting((), flag="--adapter")
    api_key_file: str | None = None
    check: bool = True
    supervise: bool = True


class ServeSettings(NamedTuple):
    choice: Choice
    server: ServerConfig
    engine: EngineConfig
    images: ImageLimits


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting of the server and of images, and `--engine` and `--config`."""
    parser.set_defaults(**dict.fromkeys(settings_of(Choice)))  # environment variables can set the model's options
    group = parser.add_argument_group("settings", "Flags go before environment variables, and these before the file.")
    group.add_argument("--config", metavar="FILE", help=f"TOML file of settings (or {CONFIG_VARIABLE})")
    engine = f"setting of the engine, repeatable: {', '.join(settings_of(EngineConfig))}"
    group.add_argument("--engine", metavar="NAME=VALUE", action="append", default=[], help=engine)
    _add_flags(group, *(settings_of(EngineConfig)[name] for name in _OWN_FLAGS))
    group.add_argument("--plan", action="store_true", help="print how memory is divided, and serve nothing")
    known = dict(settings_of(ServerConfig))
    _add_flags(parser.add_argument_group("address"), known.pop("host"), known.pop("port"))
    limits = [one for one in known.values() if one.kind in (int, float)]
    rest = [one for one in known.values() if one.kind not in (int, float)]
    _add_flags(parser.add_argument_group("access"), settings_of(Choice)["api_key_file"], *rest)
    _add_flags(parser, *(settings_of(Choice)[name] for name in ("adapters", "check", "sampling", "supervise")))
    group = parser.add_argument_group("limits", "What is over a limit is refused with a status that says so.")
    _add_flags(group, *limits, *settings_of(ImageLimits).values())


def read_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> ServeSettings:
    classes: tuple[type, ...] = (Choice, ServerConfig, ImageLimits)
    flags = {cls: _flags(cls, options) for cls in classes}
    assigned = from_assignments(EngineConfig, options.engine, "--engine")
    flags[EngineConfig] = assigned | _flags(EngineConfig, options)
    return serve_settings(gather(flags, options.config, environ))


def gather(
    given: Mapping[type, dict[str, Given]], file: str | None, environ: Mapping[str, str], *more: type
) -> dict[type, dict[str, Given]]:
    """Add what environment variables set, and below them a file, to what was given; `more` are further dataclasses."""
    known: tuple[type, ...] = (Choice, ServerConfig, EngineConfig, ImageLimits, *more)
    environ = _own(environ, known)
    file = file or environ.get(CONFIG_VARIABLE)
    content = {} if file is None else _read_file(Path(file), known)

    def found(cls: type) -> dict[str, Given]:
        table = TABLES.get(cls)
        place = f"the file {file!r}" if table is None else f"[{table}] of the file {file!r}"
        own = {name: content[name] for name in content if name in settings_of(cls)}
        values = own if table is None else content.get(table, {})
        return from_table(cls, values, place) | from_environment(cls, environ) | given.get(cls, {})

    return {cls: found(cls) for cls in known}


def serve_settings(found: Mapping[type, dict[str, Given]]) -> ServeSettings:
    """Build the settings, with the keys of the file that they name; raises `SettingsError` and `InputError`."""
    choice = build(Choice, found[Choice])
    access = {} if choice.api_key_file is None else read_access(Path(choice.api_key_file))
    return ServeSettings(
        choice,
        build(ServerConfig, found[ServerConfig], **access),
        build(EngineConfig, found[EngineConfig]),
        build(ImageLimits, found[ImageLimits]),
    )


def _flags(cls: type, options: argparse.Namespace) -> dict[str, Given]:
    found = {}
    for name, one in settings_of(cls).items():
        value = getattr(options, name, None)
        if isinstance(value, list):
            value = tuple(part for text in value for part in one.read(text, one.flag))
        elif isinstance(value, str):
            value = one.read_flag(value)
        if value is not None:
            found[name] = Given(value, one.flag)
    return found


def _read_file(path: Path, known: Sequence[type]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as cause:
        raise InputError(f"the file {str(path)!r} cannot be read ({cause.strerror}): give a TOML file") from cause
    except ValueError as cause:
        raise InputError(f"the file {str(path)!r} is not TOML: {cause}") from cause
    check_names(content, f"in the file {str(path)!r}", known)
    return content


def check_names(content: Mapping[str, Any], where: str, known: Sequence[type]) -> None:
    """Refuse a name at the top of a file that is no setting of the dataclasses, and a table that is none."""
    tables = [TABLES[cls] for cls in known if cls in TABLES]
    names = [name for cls in known if cls not in TABLES for name in settings_of(cls)] + tables
    for name, value in content.items():
        if name not in names or (name in tables and not isinstance(value, Mapping)):
            raise unknown_name(f"{name!r} {where}", name, names)


def _own(environ: Mapping[str, str], classes: Sequence[type]) -> dict[str, str]:
    """Return photonlite's variables; an unknown one is an error, since a typing error would otherwise be ignored."""
    known = {one.variable for cls in classes for one in settings_of(cls).values()} | set(_OTHER_VARIABLES)
    found = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or _KUBERNETES.fullmatch(name) or _ADDRESS_OF_KUBERNETES.match(value):
            continue
        if name not in known:
            names = {one.removeprefix(PREFIX).lower() for one in sorted(known)}
            raise unknown_name(f"the environment variable {name}", name.removeprefix(PREFIX), names)
        found[name] = value
    return found


def _add_flags(group: Any, *settings: Setting) -> None:
    for one in settings:
        kind: dict[str, Any] = {"metavar": _metavar(one)}
        if one.kind is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        elif one.many:
            kind |= {"nargs": "+", "action": "extend"}
        default: Any = f"{one.default / MIB:g}" if one.in_megabytes and one.default is not None else one.default
        shown = "" if default in (None, (), False) else f" (default: {default})"
        text = (one.help.replace("`", "") + shown).replace("%", "%%")
        group.add_argument(one.flag, dest=one.name, default=None, help=text, **kind)


def _metavar(one: Setting) -> str:
    for end, metavar in (("-mb", "MB"), ("-seconds", "S"), ("-file", "FILE")):
        if one.flag.endswith(end):
            return metavar
    return "N" if one.kind in (int, float) else "NAME"

"""Flags of `photonlite serve`: one for every setting of the server and of images."""

import argparse
from typing import Any, Final

from photonlite.cli.serve_settings import CONFIG_VARIABLE, Choice
from photonlite.config import EngineConfig, ImageLimits
from photonlite.server.config import ServerConfig
from photonlite.settings import MIB, Setting, settings_of

_ADDRESS: Final = ("host", "port")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting of the server and of images, and `--engine` and `--config`.

    Args:
        parser: Has the options of the model; their defaults become None, so that the environment can set them.
    """
    parser.set_defaults(**dict.fromkeys(settings_of(Choice)))
    group = parser.add_argument_group("settings", "Flags go before environment variables, and these before the file.")
    group.add_argument("--config", metavar="FILE", help=f"TOML file of settings (or {CONFIG_VARIABLE})")
    engine = f"setting of the engine, repeatable: {', '.join(settings_of(EngineConfig))}"
    group.add_argument("--engine", metavar="NAME=VALUE", action="append", default=[], help=engine)
    known = settings_of(ServerConfig)
    group = parser.add_argument_group("address")
    for name in _ADDRESS:
        _add_flag(group, known[name])
    rest = [one for name, one in known.items() if name not in _ADDRESS]
    group = parser.add_argument_group("access")
    for one in (settings_of(Choice)["api_key_file"], *(one for one in rest if not _is_limit(one))):
        _add_flag(group, one)
    _add_flag(parser, settings_of(Choice)["check"])
    group = parser.add_argument_group("limits", "What is over a limit is refused with a status that says so.")
    for one in (*filter(_is_limit, rest), *settings_of(ImageLimits).values()):
        _add_flag(group, one)


def _is_limit(setting: Setting) -> bool:
    return setting.kind in (int, float)


def _add_flag(group: Any, setting: Setting) -> None:
    kind: dict[str, Any] = {"metavar": _metavar(setting)}
    if setting.kind is bool:
        kind = {"action": argparse.BooleanOptionalAction}
    elif setting.many:
        kind |= {"nargs": "+", "action": "extend"}
    group.add_argument(setting.flag, dest=setting.name, default=None, help=_help(setting), **kind)


def _help(setting: Setting) -> str:
    default = setting.default
    if setting.in_megabytes and default is not None:
        default = f"{default / MIB:g}"
    shown = "" if default in (None, (), False) else f" (default: {default})"
    return (setting.help.replace("`", "") + shown).replace("%", "%%")


def _metavar(setting: Setting) -> str:
    if setting.in_megabytes:
        return "MB"
    if setting.flag.endswith("-seconds"):
        return "S"
    if setting.kind in (int, float):
        return "N"
    return "FILE" if setting.flag.endswith("-file") else "NAME"

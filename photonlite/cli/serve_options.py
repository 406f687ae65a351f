"""Options of `photonlite serve`, and the settings of the server that they make."""

import argparse
from pathlib import Path

from photonlite.errors import InputError, SettingsError
from photonlite.server.config import MIB, ServerConfig

_SHORTEST_KEY = 16
_DEFAULT = ServerConfig()


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and for whom the server works, and its limits."""
    group = parser.add_argument_group("address")
    group.add_argument("--host", default=_DEFAULT.host, help="address to listen at (default: %(default)s)")
    group.add_argument("--port", type=int, default=_DEFAULT.port, help="0 takes a free one (default: %(default)s)")
    group = parser.add_argument_group("access")
    group.add_argument("--api-key-file", metavar="FILE", help="keys, one a line; who gives none is refused")
    group.add_argument("--expose", action="store_true", help="answer other machines without keys")
    group.add_argument(
        "--allow-url-host", metavar="HOST", nargs="+", default=[], help="hosts to fetch pictures from, over https"
    )
    group.add_argument(
        "--cors-origin", metavar="ORIGIN", nargs="+", default=[], help="sites whose pages may call the server"
    )
    group.add_argument(
        "--allow-host", metavar="NAME", nargs="+", default=[], help="names by which requests may call the server"
    )
    group = parser.add_argument_group("limits", "What is over a limit is refused with a status that says so.")
    group.add_argument("--requests-per-minute", type=int, metavar="N", help="of each key, or each address without keys")
    group.add_argument(
        "--max-open", type=int, metavar="N", default=_DEFAULT.max_open, help="open requests (default: %(default)s)"
    )
    group.add_argument(
        "--max-body-mb",
        type=float,
        metavar="MB",
        default=_DEFAULT.max_body_bytes / MIB,
        help="of one request (default: %(default)g)",
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        metavar="S",
        default=_DEFAULT.drain_s,
        help="that accepted requests have once the server is told to stop (default: %(default)g)",
    )


def server_config(options: argparse.Namespace) -> ServerConfig:
    """Make the server's settings from the command line.

    Args:
        options: What `photonlite.cli.parser.parse` returned for `serve`.

    Raises:
        InputError: The key file cannot be used.
        SettingsError: An option is out of range, or the server would answer strangers.
    """
    megabytes = options.max_body_mb
    if not 0 < megabytes < 1e6:
        raise SettingsError(f"--max-body-mb is {megabytes:g}: give a number above 0, such as 32")
    return ServerConfig(
        host=options.host,
        port=options.port,
        api_keys=() if options.api_key_file is None else read_keys(Path(options.api_key_file)),
        max_body_bytes=max(1, int(megabytes * MIB)),
        max_open=options.max_open,
        requests_per_minute=options.requests_per_minute,
        drain_s=options.drain_seconds,
        url_hosts=tuple(options.allow_url_host),
        cors_origins=tuple(options.cors_origin),
        allow_hosts=tuple(options.allow_host),
        expose=options.expose,
    )


def read_keys(path: Path) -> tuple[str, ...]:
    """Read API keys: one a line; empty lines and those that begin with # do not count.

    Raises:
        InputError: The file cannot be read, holds no key, or one that is easily guessed.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as cause:
        reason = getattr(cause, "strerror", None) or "no text"
        raise InputError(f"the key file {str(path)!r} cannot be read ({reason}): give a text file") from cause
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise InputError(f"the key file {str(path)!r} holds no key: write one a line, from: openssl rand -hex 16")
    for number, key in enumerate(keys, 1):
        if len(key) < _SHORTEST_KEY:
            raise InputError(
                f"key {number} of {str(path)!r} has {len(key)} characters, and {_SHORTEST_KEY} are the least: "
                "make one with: openssl rand -hex 16"
            )
    return keys

"""The file of API keys."""

import os
import stat
from pathlib import Path
from typing import Final

from photonlite.errors import InputError

_SHORTEST_KEY: Final = 16


def read_keys(path: Path) -> tuple[str, ...]:
    """Read API keys: one a line; empty lines and those that begin with # do not count.

    Raises:
        InputError: The file cannot be read, others may write it, it holds no key, or one that is easily guessed.
    """
    try:
        with path.open(encoding="utf-8") as file:
            _check_writers(path, os.fstat(file.fileno()).st_mode)
            lines = [line.strip() for line in file.read().splitlines()]
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


def _check_writers(path: Path, mode: int) -> None:
    """Refuse a file to which another user could add a key. On Windows the mode does not tell."""
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"the key file {str(path)!r} can be written by other users (mode {stat.S_IMODE(mode):o}): chmod 600 it"
        )

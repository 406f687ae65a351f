"""The file of API keys.

A line is a key, and its weight if it has another one than 1: `3f1a9c0de5b74a6288d1c0b7e4f2a913 weight=2`.
"""

import math
import os
import re
import stat
from pathlib import Path
from typing import Final

from photonlite.errors import InputError

_SHORTEST_KEY: Final = 16
_LINE: Final = re.compile(r"(?P<key>\S+)(\s+weight=(?P<weight>\d+(\.\d+)?))?")


def read_keys(path: Path) -> dict[str, float]:
    """Read API keys and their weights; empty lines and those that begin with # do not count.

    Returns:
        What part each key gets of what callers share; 1 where the file says nothing.

    Raises:
        InputError: The file cannot be read, others may write it, it holds no key, or one that is easily guessed, or a
            line is no key with a weight.
    """
    try:
        with path.open(encoding="utf-8") as file:
            _check_writers(path, os.fstat(file.fileno()).st_mode)
            lines = [line.strip() for line in file.read().splitlines()]
    except (OSError, UnicodeDecodeError) as cause:
        reason = getattr(cause, "strerror", None) or "no text"
        raise InputError(f"the key file {str(path)!r} cannot be read ({reason}): give a text file") from cause
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise InputError(f"the key file {str(path)!r} holds no key: write one a line, from: openssl rand -hex 16")
    return dict(_read_entry(entry, f"key {number} of {str(path)!r}") for number, entry in enumerate(entries, 1))


def _read_entry(text: str, where: str) -> tuple[str, float]:
    """Return a key and its weight. Errors do not quote the line: it is a secret."""
    found = _LINE.fullmatch(text)
    weight = float(found["weight"] or 1) if found else 0.0
    if found is None or not 0 < weight < math.inf:
        raise InputError(f"{where} has something else than a weight above 0 behind it: write KEY, or KEY weight=2")
    if len(found["key"]) < _SHORTEST_KEY:
        raise InputError(
            f"{where} has {len(found['key'])} characters, and {_SHORTEST_KEY} are the least: "
            "make one with: openssl rand -hex 16"
        )
    return found["key"], weight


def _check_writers(path: Path, mode: int) -> None:
    """Refuse a file to which another user could add a key. On Windows the mode does not tell."""
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"the key file {str(path)!r} can be written by other users (mode {stat.S_IMODE(mode):o}): chmod 600 it"
        )

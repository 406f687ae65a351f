"""The content of a checkpoint as a short text: what was computed with it is of no use to another one.

Weights are hashed whole, on several threads. What was hashed is noted by the files' places, sizes and times, since
gigabytes take seconds and rarely change.
"""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from photonlite.models.loading import ModelFiles

_PIECE: Final = 32 * 2**20  # bytes that one thread hashes at a time


def known_fingerprint(files: ModelFiles, notes: Path) -> str | None:
    """Return the fingerprint that a folder has a note of; None if the files were not hashed as they are now."""
    with suppress(OSError, ValueError):
        noted = _note_of(files, notes).read_text(encoding="ascii")
        if len(noted) == 64 and int(noted, 16) >= 0:
            return noted
    return None


def fingerprint(files: ModelFiles, notes: Path) -> str:
    """Return the hex SHA-256 of configuration and weights, and leave a note of it; may raise an OSError."""
    note = _note_of(files, notes)  # before they are read: files that change meanwhile get another note
    digest = hashlib.sha256(repr(files.config).encode())
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="photonlite-hash") as threads:
        for path in files.weights:
            pieces = range(0, path.stat().st_size, _PIECE)
            for piece in threads.map(_hash_piece, [path] * len(pieces), pieces):
                digest.update(piece)
    found = digest.hexdigest()
    with suppress(OSError):  # the next process hashes them again
        notes.mkdir(parents=True, exist_ok=True)
        temporary = notes / f"{note.name}.{os.getpid()}"
        temporary.write_text(found, encoding="ascii")
        temporary.replace(note)
    return found


def _hash_piece(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(_PIECE)).digest()


def _note_of(files: ModelFiles, notes: Path) -> Path:
    """Return where the fingerprint of files is noted, by all that changes when their content does."""
    return notes / hashlib.sha256("\n".join([repr(files.config), *_states(files.weights)]).encode()).hexdigest()


def _states(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        state = path.stat()
        yield f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}"

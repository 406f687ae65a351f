"""Whether files can be written, told before the work that fills them."""

import os
from pathlib import Path

from photonlite.errors import InputError


def check_writable(flag: str, path: Path) -> None:
    """Raise an InputError if nothing can be written at a path; makes no file and no folder."""
    out = path.absolute()
    place = next(above for above in (out, *out.parents) if os.path.lexists(above))
    if place != out and not place.is_dir():
        raise InputError(f"{flag} {path}: {place} is not a folder: name another place")
    if not os.access(place, os.W_OK):
        raise InputError(f"{flag} {path}: {place} cannot be written to: name another place")

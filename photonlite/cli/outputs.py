"""Whether files can be written, told before the work that fills them."""

import io
import os
from pathlib import Path

from PIL import Image

from photonlite.errors import InputError


def check_image(flag: str, path: Path) -> None:
    """Raise an InputError if no drawing can be written as this file: its format has to hold colour."""
    try:
        Image.new("RGB", (1, 1)).save(io.BytesIO(), Image.registered_extensions()[path.suffix.lower()])
    except (KeyError, OSError, ValueError) as cause:
        reason = f"{path.suffix!r} is not an image format that holds colour: end the name in .png or .jpg"
        raise InputError(f"{flag} {path}: {reason}") from cause
    check_writable(flag, path)


def check_writable(flag: str, path: Path, *, folder: bool = False) -> None:
    """Raise an InputError if no file or folder can be written at a path; makes none."""
    out = path.absolute()
    if out.is_dir() and not folder:
        raise InputError(f"{flag} {path} is a folder: name a file in it")
    place = next(above for above in (out, *out.parents) if os.path.lexists(above))
    if place != out and not place.is_dir():
        raise InputError(f"{flag} {path}: {place} is not a folder: name another place")
    if not os.access(place, os.W_OK):
        raise InputError(f"{flag} {path}: {place} cannot be written to: name another place")

"""Inputs of the skills: images from files, folders, globs and stdin; the form of a typed answer."""

import argparse
import glob
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from photonlite.config import ImageLimits
from photonlite.errors import ImageNotFoundError, InputError
from photonlite.images.decode import file_bytes
from photonlite.images.fetch import fetch_now
from photonlite.images.files import folder_images, is_image_file
from photonlite.images.source import is_data_uri, is_url

STDIN = "-"
MAX_SCHEMA_BYTES = 1 << 20
MOST_SHOWN = 10  # names of files that are skipped


def expand(arguments: list[str]) -> tuple[list[str], bool]:
    """Return the images' names, and whether several were asked for: two arguments, or a folder or glob of any size."""
    names: list[str] = []
    several = len(arguments) > 1
    for argument in arguments:
        if is_url(argument) or is_data_uri(argument):
            names.append(argument)
            continue
        path = Path(argument)
        if path.is_dir():
            images, skipped = folder_images(path)
            report_skipped(path, skipped)
            names += map(str, images)
            several = True
        elif argument != STDIN and not path.is_file() and glob.has_magic(argument):
            names += _matching(argument)
            several = True
        else:
            names.append(argument)  # a missing file is refused when it is read, so that the others are processed
    return names, several


def short_name(name: str) -> str:
    """Return an image's name for output and names of files: a data URI has none."""
    return "data-uri" if is_data_uri(name) else name


def printable(name: str) -> str:
    """Return a name for a line of text: quoted, if it has line breaks or bytes that are not in Unicode."""
    return name if name.isprintable() else repr(name)


def check_text(text: str | None, command: str) -> None:
    """Raise InputError if the text is an image: `photonlite detect *.png` without an object."""
    if text is not None and os.path.isfile(text) and is_image_file(Path(text)):
        raise InputError(f"the last argument says what to {command}, but {text!r} is an image: add the text after it")


def read(name: str, limits: ImageLimits, *, allow_urls: bool = False) -> str | bytes:
    """Return an image as models and drawings take it: they read its transparent parts each in their way."""
    if allow_urls and is_url(name):
        return fetch_now(name, limits.max_bytes)
    if name == STDIN and sys.stdin.isatty():
        raise InputError("- reads an image from stdin, which is a terminal: pipe a file in")
    return file_bytes(sys.stdin.buffer, limits) or b"" if name == STDIN else name


def read_form(options: argparse.Namespace) -> dict[str, Any]:
    """Read --schema, --choices or --regex, and --retries, as arguments of `VisionModel.query`."""
    form: dict[str, Any] = {"retries": options.retries} if options.retries else {}
    if options.schema is not None:
        form["schema"] = _schema(options.schema)
    if options.choices is not None:
        form["choices"] = [choice.strip() for choice in options.choices.split(",")]
    return form if options.regex is None else form | {"regex": options.regex}


def _schema(source: str) -> Any:
    module, colon, name = source.rpartition(":")
    if colon and not Path(source).exists() and all(part.isidentifier() for part in (*module.split("."), name)):
        return _from_module(module, name)
    path = Path(source)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)  # pipes and devices have no size
        if len(data) > MAX_SCHEMA_BYTES:
            raise InputError(f"--schema {source}: the file is over {MAX_SCHEMA_BYTES} bytes: make the schema smaller")
        return data.decode()
    except OSError as cause:
        advice = "check the path, or give MODULE:NAME"
        raise InputError(f"--schema {source}: the file cannot be read ({cause.strerror}): {advice}") from cause
    except UnicodeDecodeError as cause:
        raise InputError(f"--schema {source}: the file is not text in UTF-8: save it as such") from cause


def _from_module(module: str, name: str) -> Any:
    """Import a type, also from a module in the current folder."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as cause:  # importing a module may raise anything
        raise InputError(f"--schema {module}:{name} cannot be imported: {type(cause).__name__}: {cause}") from cause


def report_skipped(folder: str | Path, skipped: Sequence[str]) -> None:
    """Say on stderr what a folder holds that is not read."""
    if skipped:
        shown = ", ".join(map(printable, skipped[:MOST_SHOWN]))
        shown += f" and {len(skipped) - MOST_SHOWN} more" if len(skipped) > MOST_SHOWN else ""
        note = f"{len(skipped)} skipped in {str(folder)!r} (not an image in a supported format)"
        print(f"photonlite: {note}: {shown}", file=sys.stderr)


def _matching(pattern: str) -> list[str]:
    found = sorted(name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if not found:
        raise ImageNotFoundError(f"no file matches {pattern!r}: check the folder and the pattern")
    return found

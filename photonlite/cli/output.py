"""Output: JSON on stdout, images in files."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from photonlite.cli.inputs import STDIN
from photonlite.errors import InputError


def to_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a mapping as JSON that stdout can encode: escaped where it must be."""
    text = json.dumps(dict(value), ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(dict(value), indent=indent)
    return text


class PlotTarget:
    """Destination of drawn results: checked before any work is done, and never one of the images (`sources`)."""

    def __init__(self, out: str, command: str, sources: list[str], several: bool) -> None:
        self._out = Path(out)
        self._command = command
        self._is_folder = several or self._out.is_dir()
        self._taken = {Path(source).resolve() for source in sources if source != STDIN}
        suffix = self._out.suffix.lower()
        if self._is_folder:
            if self._out.exists() and not self._out.is_dir():
                raise InputError(f"--plot {out}: several images need a folder, and this is a file")
        elif Image.registered_extensions().get(suffix) not in Image.SAVE:
            raise InputError(f"--plot {out}: {suffix!r} is not an image format: end the name in .png or .jpg")
        elif self._out.resolve() in self._taken:
            raise InputError(f"--plot {out} would overwrite the image itself: name another file")

    def save(self, image: Image.Image, source: str) -> Path:
        """Write an image drawn on the source of that name; returns the file."""
        path = self._path_in_folder(source) if self._is_folder else self._out
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        return path

    def _path_in_folder(self, source: str) -> Path:
        """Return a new file name, also for images of the same name in different folders."""
        stem = f"{'stdin' if source == STDIN else Path(source).stem}-{self._command}"
        path = self._out / f"{stem}.png"
        number = 2
        while path.resolve() in self._taken:
            path = self._out / f"{stem}-{number}.png"
            number += 1
        self._taken.add(path.resolve())
        return path

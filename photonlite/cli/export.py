"""`photonlite export`: what is found in many images, as a data set that training tools and supervision read."""

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tqdm import tqdm

from photonlite.cli.dataset import DATA_SETS, DataSet
from photonlite.cli.inputs import STDIN, expand, printable
from photonlite.cli.outputs import check_writable
from photonlite.cli.run import IMAGE_FAILURES, ask_model, check_request, load_model
from photonlite.cli.store import store_settings
from photonlite.cli.video import MOST_REQUESTS
from photonlite.config import ImageLimits
from photonlite.errors import ImageError, InputError
from photonlite.images.decode import exif_orientation, file_bytes, load_image, open_image
from photonlite.images.source import is_data_uri, is_url
from photonlite.results import Detections, Segments
from photonlite.skills.names import clean_names
from photonlite.video.answers import answer_frames

MOST_NAME_BYTES: Final = 250  # without the suffix
# Formats that readers of data sets know, by these suffixes, and read alike in these modes.
_SUFFIXES: Final = {"BMP": (".bmp",), "JPEG": (".jpg", ".jpeg"), "PNG": (".png",), "WEBP": (".webp",)}
_MODES: Final = ("1", "L", "P", "RGB")


class Exported(NamedTuple):
    file_name: str  # of the copy
    image: bytes
    result: Detections | Segments


def run_export(options: argparse.Namespace) -> int:
    """Write the data set and list the images that failed; returns 2 if there are any."""
    names, _ = expand(options.images)
    if any(name == STDIN or is_url(name) or is_data_uri(name) for name in names):
        raise InputError("export copies the images: give files, folders or globs in place of -, URLs and data URIs")
    folder = _new_folder(options)
    asked = argparse.Namespace(**vars(options) | {"command": options.task, "text": options.object})
    check_request(asked, asked.command, asked.text)
    failures: dict[str, Exception] = _doubles(names)
    found, images, cut = Counter[str](), 0, 0
    for name, answer in _write(asked, [name for name in dict.fromkeys(names) if name not in failures], folder):
        if isinstance(answer, Exception):
            failures[name] = answer
        else:
            found.update(answer.result.labels)
            images, cut = images + 1, cut + bool(answer.result.truncated)
    if images:
        print(f"{folder}: {images} images, {', '.join(f'{found[name]} {name}' for name in clean_names(asked.text))}")
    if cut:
        print(f"photonlite: in {cut} images a limit cut the list short: raise --max-objects", file=sys.stderr)
    if failures:
        kept = "the others are in the data set" if images else "nothing was written"
        total = len(failures) + images
        print(f"photonlite: error: {len(failures)} of {total} images failed, {kept}:", file=sys.stderr)
        for name, error in failures.items():
            print(f"  {printable(name)}: {error}", file=sys.stderr)
    return 2 if failures else 0


def _write(options: argparse.Namespace, names: list[str], folder: Path) -> Iterator[tuple[str, Exported | Exception]]:
    """Yield each image with what was written of it, or why nothing was."""
    data_set: DataSet | None = None
    with load_model(options, store_settings(options)) as model:
        ask = partial(_ask, model, options, model.image_limits)
        answers = answer_frames(names, ask, window=min(2 * model.max_batch, MOST_REQUESTS))
        try:
            for name, answer in tqdm(answers, total=len(names), unit="image", disable=None):
                if isinstance(answer, Exported):
                    data_set = data_set or DATA_SETS[options.format](folder, clean_names(options.text))
                    data_set.add(*answer)
                if answer is not None:
                    yield name, answer
        finally:
            answers.close()
            if data_set is not None:
                data_set.save()


def _ask(model: Any, options: argparse.Namespace, limits: ImageLimits, name: str) -> Exported | Exception:
    """Ask about an image; an error of this image alone takes the place of its result."""
    try:
        data = file_bytes(name, limits) or b""  # once: what is copied is what was asked about
        result = ask_model(model, options, data, {})
        return Exported(*_copied(name, data, limits), result)
    except IMAGE_FAILURES as error:
        return error


def _new_folder(options: argparse.Namespace) -> Path:
    first = Path(options.images[0])
    stem = first.resolve().name if len(options.images) == 1 and first.is_dir() else "export"
    folder = Path(options.output or f"{stem}-{options.format}")
    if folder.is_dir() and not any(folder.iterdir()):
        return folder
    if folder.exists():
        raise InputError(f"--output {folder}: there is something already: name a new folder")
    check_writable("--output", folder)
    return folder


def _doubles(names: list[str]) -> dict[str, Exception]:
    """Return the images, but for the first one, that have a name in common: labels are files of the same name."""
    first: dict[str, str] = {}
    return {
        name: ImageError(f"its labels would replace those of {printable(other)}: rename one of them")
        for name in names
        if (other := first.setdefault(_unicode_name(name).stem.casefold(), name)) != name
    }


def _unicode_name(name: str) -> Path:
    """Return the name of a file in Unicode: that of an old archive, which is in none, is taken for Latin-1."""
    data = os.fsencode(Path(name).name)
    try:
        return Path(data.decode())
    except UnicodeDecodeError:
        return Path(data.decode("latin-1"))


def _copied(name: str, data: bytes, limits: ImageLimits) -> tuple[str, bytes]:
    """Return name and content of a copy that all readers see alike: the image as it is, or as an upright PNG."""
    path, image = _unicode_name(name), open_image("the image", io.BytesIO(data), limits)
    if len(os.fsencode(path.stem)) > MOST_NAME_BYTES:
        raise ImageError(f"the name of its copy would be over {MOST_NAME_BYTES} bytes long: rename it")
    suffixes = _SUFFIXES.get(str(image.format), ())
    alike = image.mode in _MODES and "transparency" not in image.info and not getattr(image, "is_animated", False)
    if suffixes and alike and exif_orientation(image) == 1:
        return path.name if path.suffix.lower() in suffixes else path.stem + suffixes[0], data
    copy = io.BytesIO()
    load_image(data, limits).save(copy, "PNG")
    return f"{path.stem}.png", copy.getvalue()

"""`photonlite export`: what is found in many images, as a data set that training tools and supervision read.

```
coco   DIR/images/  DIR/annotations.json
yolo   DIR/images/  DIR/labels/  DIR/data.yaml
```
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from PIL import ExifTags, Image

from photonlite.cli.inputs import STDIN, expand, read
from photonlite.cli.outputs import check_writable
from photonlite.cli.parser import given_search, given_settings
from photonlite.cli.run import check_request, import_extra, load_model
from photonlite.cli.store import store_settings
from photonlite.config import ImageLimits
from photonlite.errors import CapacityError, ImageError, InputError, TileError, TruncatedError
from photonlite.images.source import is_data_uri, is_url
from photonlite.results import Detections, Segments, to_coco

_MISSING: Final = (
    "export writes data sets with the package {name}: install it with pip install 'photonlite[supervision]'"
)
# Suffixes that readers of data sets know.
_PORTABLE: Final = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def run_export(options: argparse.Namespace) -> int:
    """Write the data set and list the images that failed; returns 2 if there are any."""
    supervision = import_extra("supervision", _MISSING)
    names, _ = expand(options.images)
    if any(name == STDIN or is_url(name) or is_data_uri(name) for name in names):
        raise InputError("export copies the images: give files, folders or globs in place of -, URLs and data URIs")
    folder = _new_folder(options)
    check_request(options, options.task, options.object)
    failures: dict[str, Exception] = _doubles(names)
    names = [name for name in names if name not in failures]
    found: dict[str, Detections | Segments] = {}
    for name, result in zip(names, _answers(options, names), strict=True):
        # Failures of this image only: others, such as a wrong setting, occur for every image.
        if isinstance(result, ImageError | CapacityError | TileError | TruncatedError | OSError):
            failures[name] = result
        elif isinstance(result, Exception):
            raise result
        else:
            found[name] = result
    if found:
        try:
            _save(supervision, found, options, folder)
        except OSError as cause:  # such as a full disk, for which the image that was copied is not to blame
            advice = "make room, and remove the folder"
            raise InputError(f"--output {folder} is not whole ({cause.strerror or cause}): {advice}") from cause
        print(_summary(folder, found))
    if cut := sum(bool(result.truncated) for result in found.values()):
        print(f"photonlite: in {cut} images a limit cut the list short: raise --max-objects", file=sys.stderr)
    if failures:
        kept = "the others are in the data set" if found else "nothing was written"
        total = len(failures) + len(found)
        print(f"photonlite: error: {len(failures)} of {total} images failed, {kept}:", file=sys.stderr)
        for name, error in failures.items():
            print(f"  {name}: {error}", file=sys.stderr)
    return 2 if failures else 0


def _answers(options: argparse.Namespace, names: list[str]) -> list[Any]:
    with load_model(options, store_settings(options)) as model:
        more = {"settings": given_settings(options) or None, "strict": options.strict, **given_search(options)}
        tasks = [{"skill": options.task, "image": name, "object": options.object, **more} for name in names]
        answers = model.batch(tasks, progress=sys.stderr.isatty())
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception) and answer.args:
            answer.args = (str(answer.args[0]).removeprefix(f"task {index}: "), *answer.args[1:])
    return answers


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
        name: ImageError(f"its labels would replace those of {other}: rename one of them")
        for name in names
        if (other := first.setdefault(Path(name).stem.casefold(), name)) != name
    }


def _save(
    supervision: Any, found: Mapping[str, Detections | Segments], options: argparse.Namespace, folder: Path
) -> None:
    names = list(next(iter(found.values())).names)
    images, limits = folder / "images", ImageLimits.from_env()
    images.mkdir(parents=True, exist_ok=True)
    paths = [_copied(name, images, limits) for name in found]
    if options.format == "coco":
        numbers = {label: number for number, label in enumerate(names, start=1)}
        data_set = to_coco(list(found.values()), file_names=[path.name for path in paths], category_ids=numbers)
        (folder / "annotations.json").write_text(json.dumps(data_set), encoding="utf-8")
        return
    classes = {label: number for number, label in enumerate(names)}
    for path, result in zip(paths, found.values(), strict=True):  # one by one: masks of all images take much memory
        one = {str(path): result.to_supervision(class_ids=classes)}
        supervision.DetectionDataset(names, list(one), one).as_yolo(None, str(folder / "labels"))
    # JSON is YAML as well. Ultralytics looks for relative paths among its own data sets.
    fields = {"path": str(folder.resolve()), "train": "images", "val": "images", "nc": len(names), "names": names}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items()]
    (folder / "data.yaml").write_text("".join(lines), encoding="utf-8")


def _copied(name: str, images: Path, limits: ImageLimits) -> Path:
    """Copy an image into a folder so that all readers see it alike: as it is, or as an upright PNG."""
    with Image.open(name) as image:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1 and Path(name).suffix.lower() in _PORTABLE:
            return Path(shutil.copyfile(name, images / Path(name).name))
    copied = images / f"{Path(name).stem}.png"
    read(name, limits).save(copied)
    return copied


def _summary(folder: Path, found: Mapping[str, Detections | Segments]) -> str:
    labels = [label for result in found.values() for label in result.labels]
    counts = ", ".join(f"{labels.count(name)} {name}" for name in next(iter(found.values())).names)
    return f"{folder}: {len(found)} images, {counts}"

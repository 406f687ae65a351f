"""One skill on one image, or on many."""

import argparse
import json
import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from PIL import Image
from tqdm import tqdm

import photonlite
from photonlite.cli.inputs import STDIN, check_text, expand, read, read_form, short_name
from photonlite.cli.outputs import check_image, check_writable
from photonlite.cli.parser import SPATIAL, given_search, given_settings
from photonlite.cli.store import store_settings
from photonlite.config import EngineSettings, ImageLimits
from photonlite.errors import CapacityError, ImageError, InputError, MissingDependencyError, TileError, TruncatedError
from photonlite.images.decode import load_image
from photonlite.realtime.frames import Question
from photonlite.skills.names import SeveralNamesWarning, joins_names

IMAGE_FAILURES: Final = (ImageError, CapacityError, TileError, TruncatedError, OSError)
"""Failures of one image: others, such as a wrong setting, would occur for every image."""


def run_skill(options: argparse.Namespace) -> int:
    """Print one image's result as indented JSON or text, several as JSON lines; returns 2 if one of several failed."""
    if isinstance(options.text, str):
        check_text(options.text, options.command)
    check_request(options, options.command, options.length if options.command == "caption" else options.text)
    if options.command in SPATIAL:
        advise_of_joined(options.text)
    form = read_form(options) if options.command == "query" else {}
    names, several = expand(options.images)
    if options.stream and several:
        raise InputError("--stream prints the text of one image: give one, or leave --stream out")
    plot = None if options.plot is None else PlotTarget(options.plot, options.command, names, several)
    if several or options.json:
        return _run_lines(options, names, plot, form)
    image = read(names[0], limits := ImageLimits.from_env(), allow_urls=options.allow_urls)
    load_image(image, limits)  # before the model is loaded: a bad image is reported at once
    result = ask_model(load_model(options, store_settings(options)), options, image, form)
    if options.stream:
        for piece in result["caption" if "caption" in result else "answer"]:
            print(piece, end="", flush=True)
        print(flush=True)
    else:
        print(to_json(_plain(result), indent=2), flush=True)
    if result.truncated:
        objects = result.finish_reason == "max_objects"
        advice = "raise --max-objects" if objects else "raise --max-tokens, or ask for less"
        print(f"photonlite: a limit cut the answer short: {advice}", file=sys.stderr)
    if plot:
        print(f"drawn in {plot.save(result.plot(image), names[0])}", file=sys.stderr)
    return 0


def _run_lines(
    options: argparse.Namespace, names: list[str], plot: "PlotTarget | None", form: Mapping[str, Any]
) -> int:
    limits, model = ImageLimits.from_env(), load_model(options, store_settings(options))
    failed = 0
    with tqdm(names, unit="image", disable=None) as progress:  # None: no bar where stderr is no terminal
        for name in progress:
            line: dict[str, Any] = {"image": short_name(name)}
            try:
                image = read(name, limits, allow_urls=options.allow_urls)
                result = ask_model(model, options, image, form)
                line.update(_plain(result))
                if result.truncated:
                    line["truncated"] = True
                if plot:
                    line["plot"] = str(plot.save(result.plot(image), name))
            except IMAGE_FAILURES as error:
                failed += 1
                line = {"image": short_name(name), "error": {"type": type(error).__name__, "message": str(error)}}
            with tqdm.external_write_mode(file=sys.stdout):  # the bar and the lines may share a terminal
                print(to_json(line), flush=True)
    if failed:
        print(f"photonlite: error: {failed} of {len(names)} images failed", file=sys.stderr)
    return 2 if failed else 0


def check_request(options: argparse.Namespace, skill: str, subject: Any) -> None:
    """Raise an error for what no model takes, before one is loaded."""
    name = {"caption": "length", "query": "question"}.get(skill, "object")
    Question.of(skill, **{name: subject}, settings=given_settings(options), **given_search(options))


def advise_of_joined(names: object) -> None:
    """Say on stderr that one name reads like several, in place of Python's warning."""
    if isinstance(names, str) and joins_names(names):
        warnings.simplefilter("ignore", SeveralNamesWarning)
        advice = "is looked for as one thing; for several give --object for each"
        print(f"photonlite: {names!r} {advice}", file=sys.stderr)


def import_extra(module: str, missing: str) -> Any:
    """Import a module, for one command only: it takes time, and packages of an extra (`missing` says which)."""
    try:
        return import_module(module)
    except ModuleNotFoundError as cause:
        if (cause.name or "").partition(".")[0] == "photonlite":
            raise
        raise MissingDependencyError(missing.format(name=cause.name)) from cause


def load_model(options: argparse.Namespace, engine: EngineSettings | None = None) -> "photonlite.VisionModel":
    """Load the model; `engine` are settings of the engine."""
    names = ("device", "dtype", "revision", "weights", "vision_weights")
    return photonlite.load(options.model, **{name: getattr(options, name) for name in names}, engine=engine or {})


def ask_model(model: Any, options: argparse.Namespace, image: Any, form: Mapping[str, Any]) -> Any:
    more = {"settings": given_settings(options) or None, "strict": options.strict, **given_search(options)}
    if options.command in ("caption", "query"):
        more["stream"] = options.stream
    if options.command == "query":
        more |= {"reasoning": options.reasoning, **form}
    subject = options.length if options.command == "caption" else options.text
    return getattr(model, options.command)(image, subject, **more)


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a result for JSON: a typed answer becomes the values it was made of."""
    plain = dict(result)
    if "text" in plain:
        plain["answer"] = json.loads(plain.pop("text"))
    return plain


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
        self._taken = {Path(short_name(source)).resolve() for source in sources if source != STDIN}
        if self._is_folder:
            if self._out.exists() and not self._out.is_dir():
                raise InputError(f"--plot {out}: several images need a folder, and this is a file")
            check_writable("--plot", self._out, folder=True)
        elif self._out.resolve() in self._taken:
            raise InputError(f"--plot {out} would overwrite the image itself: name another file")
        else:
            check_image("--plot", self._out)

    def save(self, image: Image.Image, source: str) -> Path:
        path = self._out
        if self._is_folder:  # a new name, also for images of the same name in different folders
            stem = f"{'stdin' if source == STDIN else Path(short_name(source)).stem}-{self._command}"
            files = (self._out / f"{stem}{end}.png" for end in chain([""], map("-{}".format, count(2))))
            path = next(file for file in files if file.resolve() not in self._taken)
            self._taken.add(path.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        return path

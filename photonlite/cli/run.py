"""One skill on one image, or on many."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image
from tqdm import tqdm

import photonlite
from photonlite.cli.inputs import check_text, expand, read, read_form
from photonlite.cli.output import PlotTarget, to_json
from photonlite.cli.parser import given_settings
from photonlite.config import ImageLimits
from photonlite.errors import CapacityError, ImageError, InputError, TruncatedError

if TYPE_CHECKING:
    from photonlite.results import Answer, Caption, Detections, Points, Segments


def run_skill(options: argparse.Namespace) -> int:
    """Run the skill on every image and print the results; returns the exit code, 2 if an image of several failed.

    One image: its result as indented JSON, or its text as it is generated. Several, or --json: one line of JSON each,
    with the image's name, and an error in the place of a result.
    """
    check_text(options.text, options.command)
    form = read_form(options) if options.command == "query" else {}
    names, several = expand(options.images)
    if options.stream and several:
        raise InputError("--stream prints the text of one image: give one, or leave --stream out")
    plot = None if options.plot is None else PlotTarget(options.plot, options.command, names, several)
    limits = ImageLimits.from_env()
    if several or options.json:
        return _run_lines(options, names, plot, limits, form)
    image = read(names[0], limits)  # before the model: a bad image is reported at once
    result = _ask(load_model(options), options, image, form)
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
    options: argparse.Namespace, names: list[str], plot: PlotTarget | None, limits: ImageLimits, form: Mapping[str, Any]
) -> int:
    model = load_model(options)
    failed = 0
    with tqdm(names, unit="image", disable=None) as progress:  # None: no bar where stderr is no terminal
        for name in progress:
            line: dict[str, Any] = {"image": name}
            try:
                image = read(name, limits)
                result = _ask(model, options, image, form)
                line.update(_plain(result))
                if result.truncated:
                    line["truncated"] = True
                if plot:
                    line["plot"] = str(plot.save(result.plot(image), name))
            # Failures of this image only: others, such as a wrong setting, would occur for every image.
            except (ImageError, CapacityError, TruncatedError, OSError) as error:
                failed += 1
                line = {"image": name, "error": {"type": type(error).__name__, "message": str(error)}}
            with tqdm.external_write_mode(file=sys.stdout):  # the bar and the lines may share a terminal
                print(to_json(line), flush=True)
    if failed:
        print(f"photonlite: error: {failed} of {len(names)} images failed", file=sys.stderr)
    return 2 if failed else 0


def load_model(options: argparse.Namespace) -> "photonlite.VisionModel":
    return photonlite.load(options.model, device=options.device, dtype=options.dtype, revision=options.revision)


def _ask(
    model: "photonlite.VisionModel", options: argparse.Namespace, image: Image.Image, form: Mapping[str, Any]
) -> "Detections | Points | Segments | Caption | Answer":
    more: dict[str, Any] = {"settings": given_settings(options) or None, "strict": options.strict}
    if options.command in ("caption", "query"):
        more["stream"] = options.stream
    if options.command == "query":
        more |= {"reasoning": options.reasoning, **form}
    subject = options.length if options.command == "caption" else options.text
    return getattr(model, options.command)(image, subject, **more)  # type: ignore[no-any-return]


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a result for JSON: a typed answer becomes the values it was made of."""
    plain = dict(result)
    if "text" in plain:
        plain["answer"] = json.loads(plain.pop("text"))
    return plain

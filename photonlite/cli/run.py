"""One skill on one image, or on many."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image
from tqdm import tqdm

import photonlite
from photonlite.cli.forms import read_form
from photonlite.cli.inputs import check_text, expand, read
from photonlite.cli.output import PlotTarget, to_json
from photonlite.config import ImageLimits
from photonlite.errors import CapacityError, ImageError, InputError, TruncatedError

if TYPE_CHECKING:
    from photonlite.results import Answer, Caption, Detections, Points, Segments

SETTINGS = ("temperature", "top_p", "max_tokens", "max_objects", "seed")


def run_skill(options: argparse.Namespace) -> int:
    """Run the skill on every image and print the results.

    One image: its result as indented JSON, or its text as it comes. Several, or --json: one line of JSON for each,
    which holds the image's name, and an error in place of the result where there was one.

    Args:
        options: What `photonlite.cli.parser.parse` returned for a skill.

    Returns:
        The exit code: 0, or 2 when an image of several failed.

    Raises:
        PhotonliteError: The one image, the model or the request cannot be used.
        OSError: A drawn image cannot be written.
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
    image = read(names[0], limits)  # before the model: a bad image is told at once
    result = _ask(_load(options), options, image, form)
    if options.stream:
        _print_stream(result)
    else:
        print(to_json(_plain(result), indent=2), flush=True)
    if result.truncated:
        print(f"photonlite: a limit cut the answer short: {_raise_limit(result.finish_reason)}", file=sys.stderr)
    if plot:
        print(f"drawn in {plot.save(result.plot(image), names[0])}", file=sys.stderr)
    return 0


def _run_lines(
    options: argparse.Namespace,
    names: list[str],
    plot: PlotTarget | None,
    limits: ImageLimits,
    form: Mapping[str, Any],
) -> int:
    model = _load(options)
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
            # A failure of this image. What would befall every image, such as a wrong setting, ends the run.
            except (ImageError, CapacityError, TruncatedError, OSError) as error:
                failed += 1
                line = {"image": name, "error": {"type": type(error).__name__, "message": str(error)}}
            with tqdm.external_write_mode(file=sys.stdout):  # the bar and the lines may share a terminal
                print(to_json(line), flush=True)
    if failed:
        print(f"photonlite: error: {failed} of {len(names)} images failed", file=sys.stderr)
    return 2 if failed else 0


def _load(options: argparse.Namespace) -> "photonlite.VisionModel":
    return photonlite.load(options.model, device=options.device, dtype=options.dtype, revision=options.revision)


def _ask(
    model: "photonlite.VisionModel", options: argparse.Namespace, image: Image.Image, form: Mapping[str, Any]
) -> "Detections | Points | Segments | Caption | Answer":
    given = {name: getattr(options, name, None) for name in SETTINGS}
    settings = {name: value for name, value in given.items() if value is not None} or None
    strict = options.strict
    match options.command:
        case "detect":
            return model.detect(image, options.text, settings=settings, strict=strict)
        case "point":
            return model.point(image, options.text, settings=settings, strict=strict)
        case "segment":
            return model.segment(image, options.text, settings=settings, strict=strict)
        case "caption":
            return model.caption(image, options.length, stream=options.stream, settings=settings, strict=strict)
        case _:
            return model.query(
                image,
                options.text,
                stream=options.stream,
                reasoning=options.reasoning,
                settings=settings,
                strict=strict,
                **form,
            )


def _raise_limit(finish_reason: str | None) -> str:
    return "raise --max-objects" if finish_reason == "max_objects" else "raise --max-tokens, or ask for less"


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """Give what JSON can hold: of an answer that is an object of some type, the values of which it was made."""
    plain = dict(result)
    if "text" in plain:
        plain["answer"] = json.loads(plain.pop("text"))
    return plain


def _print_stream(result: Mapping[str, Any]) -> None:
    pieces: Iterator[str] = result["caption"] if "caption" in result else result["answer"]
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)

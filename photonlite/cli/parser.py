"""Arguments, help and examples. Nothing here imports torch, so that `--help` and errors come at once."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn, get_args

import photonlite
from photonlite.cli.settings import add_server_options
from photonlite.config import VisionWeights, Weights
from photonlite.errors import InputError
from photonlite.request import SETTINGS

SUMMARIES = {
    "detect": "find every object of a name: boxes",
    "point": "point at every object of a name",
    "segment": "outline every object of a name",
    "caption": "describe the image",
    "query": "answer a question about the image",
    "export": "find objects in many images, and write a data set: COCO or YOLO",
    "realtime": "ask about a stream of frames, and watch",
    "serve": "answer over HTTP: a page to look at, Moondream's API, OpenAI's",
    "models": "list the checkpoints that are known and those on this machine",
    "store": "show and prune what is kept of images for later questions",
    "quantize": "write a checkpoint with weights in 8 or 4 bits",
    "tune": "measure encoding and decoding side by side on a card: serve --encoding beside uses it",
    "verify": "compare what a checkpoint computes here with other ways to compute the same",
}

# Name of the last argument of a skill; caption takes images only.
TEXT = {"detect": "OBJECT", "point": "OBJECT", "segment": "OBJECT", "query": "QUESTION"}
SPATIAL = ("detect", "point", "segment")
TRACK = "give objects ids that they keep from frame to frame (needs photonlite[track])"
SKILLS = (*SPATIAL, "caption", "query")
_WORD = "\0"  # before a word that is no option, whatever it begins with

EXAMPLES = {
    "detect": """\
  photonlite detect desk.png banana
  photonlite detect desk.png banana --plot boxes.png
  photonlite detect desk.png --object banana --object cup --min-score 0.5
  photonlite detect market.png tangerine --tile 2x2
  photonlite detect photos/ "teddy bear" --plot boxes/ > boxes.jsonl
  photonlite detect "photos/*.jpg" dog --max-objects 5
  photonlite detect clip.mp4 --object ball --track --output found.mp4
  photonlite detect frames/ --object ball --every 5 --output found.mp4 --json > found.jsonl
  curl --silent https://example.com/desk.png | photonlite detect - banana""",
    "point": """\
  photonlite point desk.png key
  photonlite point desk.png key --plot points.png""",
    "segment": """\
  photonlite segment desk.png umbrella --model path/to/checkpoint --plot outline.png""",
    "caption": """\
  photonlite caption desk.png
  photonlite caption desk.png --length short --stream
  photonlite caption photos/ > captions.jsonl""",
    "query": """\
  photonlite query desk.png "How many bananas are there?"
  photonlite query desk.png "Is there a key?" --stream
  photonlite query desk.png "Is there a key?" --choices yes,no
  photonlite query desk.png "Find the fruit." --schema shelf.json
  photonlite query photos/ "Is there a dog?" > answers.jsonl""",
    "export": """\
  photonlite export photos/ --object banana --object cup --format coco
  photonlite export "photos/*.jpg" --object dog --format yolo --output dogs --min-score 0.5
  photonlite export photos/ --object dog --format yolo --task segment""",
    "realtime": """\
  photonlite realtime --source assets/clip --task point --object banana
  photonlite realtime --source assets/clip --object banana --duration 10 --output found.webp
  photonlite realtime --source 0 --object cup --object bottle --deadline-ms 200
  photonlite realtime --source drive.mp4 --object car --rate 10 --json > cars.jsonl""",
    "serve": """\
  photonlite serve
  photonlite serve --port 8000 --model path/to/checkpoint --device cuda
  photonlite serve --model vikhyatk/moondream2 --encoding beside --tuning mine.json
  photonlite serve --host 0.0.0.0 --api-key-file keys.txt --requests-per-minute 120
  photonlite serve --allow-url-host images.example.com > requests.jsonl""",
    "models": """\
  photonlite models
  photonlite models --json""",
    "store": """\
  photonlite store
  photonlite store --prune --unused-days 30
  photonlite store --prune --store /srv/photonlite --tenant alice""",
    "quantize": """\
  photonlite quantize vikhyatk/moondream2 moondream2-int4
  photonlite quantize path/to/checkpoint smaller --weights int4 --vision-weights int8
  photonlite quantize path/to/checkpoint smaller --images photos/""",
    "tune": """\
  photonlite tune --device cuda
  photonlite tune vikhyatk/moondream2
  photonlite tune --file tuning.json""",
    "verify": """\
  photonlite verify
  photonlite verify Qwen/Qwen3-VL-2B-Instruct --device cuda
  photonlite verify path/to/checkpoint --dtype float32 --json""",
}


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.replace(_WORD, '')} (see {self.prog} --help)")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; a skill gets `images` and `text`. Raises `SystemExit` after printing help or version."""
    if not arguments or arguments[0] not in SUMMARIES:
        _refuse(arguments)
    command = arguments[0]
    words = list(arguments[1:])
    if "--" in words:  # argparse does not let it end intermixed options
        end = words.index("--")
        words[end:] = [_WORD + word for word in words[end + 1 :]]
    # Intermixed, so that options may stand anywhere, also between the images and the text.
    options = _command_parser(command).parse_intermixed_args(words)
    options.command = command
    if command in SPATIAL and options.object is not None:
        options.text = options.object if len(options.object) > 1 else options.object[0]
    elif command in SKILLS:
        options.text = options.images.pop() if command in TEXT else None
    if command in SKILLS:
        _check_skill(command, options)
    return options


def _unmarked(word: str) -> str:
    return word.removeprefix(_WORD)


def _refuse(arguments: Sequence[str]) -> NoReturn:
    """Handle arguments without a command: `--help` and `--version` exit, everything else is an error."""
    parser = _Parser("photonlite", "photonlite COMMAND ...", formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = "\n".join(f"  {name:9} {summary}" for name, summary in SUMMARIES.items())
    examples = "\n".join(EXAMPLES[name].splitlines()[0] for name in SUMMARIES)
    parser.description = f"{photonlite.__doc__}".splitlines()[0]
    parser.epilog = f"commands:\n{commands}\n\nexamples:\n{examples}\n\nphotonlite COMMAND --help says more about each."
    parser.add_argument("--version", action="version", version=f"photonlite {photonlite.__version__}")
    _, unknown = parser.parse_known_args(arguments)
    named = f"there is no command {unknown[0]!r}" if unknown else "a command is missing"
    parser.error(f"{named}: choose one of {', '.join(SUMMARIES)}")


def _command_parser(command: str) -> argparse.ArgumentParser:
    text = TEXT.get(command)
    images = f"IMAGE... {text}" if text else "IMAGE..."
    usage = f"{command} {images}" if command in (*SKILLS, "export") else command
    usage += {"verify": " [MODEL]", "tune": " [MODEL]", "quantize": " MODEL FOLDER"}.get(command, "")
    parser = _Parser(
        f"photonlite {command}",
        f"photonlite {usage} [options]",
        description=SUMMARIES[command][0].upper() + SUMMARIES[command][1:] + ".",
        epilog=f"examples:\n{EXAMPLES[command]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command in (*SKILLS, "export"):
        last = f"; the last argument is the {text.lower()}" if text else ""
        source = "a file, a folder (its images, not those of folders inside), a quoted glob, or - for stdin"
        source += "; or a video, by itself" if command in SPATIAL else ""
        parser.add_argument("images", type=_unmarked, nargs="+", metavar=images, help=source + last)
    if command == "store":
        _add_store_options(parser)
    elif command != "models":
        group = parser.add_argument_group("model")
        what = "a folder, a .safetensors file or a Hub id (default: the shipped checkpoint)"
        if command in ("verify", "tune"):
            group.add_argument("model", type=_unmarked, nargs="?", metavar="MODEL", help=what)
        elif command == "quantize":
            what = "a folder, a .safetensors file, a Hub id, or nano"
            group.add_argument("model", type=_unmarked, metavar="MODEL", help=what)
            group.add_argument("folder", type=_unmarked, metavar="FOLDER", help="a new folder")
            what = "a folder or quoted glob of typical images: int4 is rounded for what goes into each layer then"
            group.add_argument("--images", metavar="IMAGES", help=what)
        else:
            group.add_argument("--model", help=what)
        group.add_argument("--revision", help="branch, tag or commit of a Hub id")
        if command != "quantize":
            group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... (default: auto)")
        group.add_argument("--dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"))
        if command in (*SKILLS, "export"):
            what = "keep what was computed for images here, for later questions (default: a folder in your cache)"
            stores = group.add_mutually_exclusive_group()
            stores.add_argument("--store", metavar="DIR", help=what)
            stores.add_argument("--no-store", action="store_true", help="keep nothing")
        if command not in ("verify", "tune"):
            _add_precisions(group, written=command == "quantize")
    if command in SKILLS:
        _add_skill_options(parser, command)
    elif command == "export":
        _add_export_options(parser)
    elif command == "realtime":
        _add_realtime_options(parser)
    elif command == "serve":
        add_server_options(parser)
    elif command == "tune":
        parser.add_argument("--file", metavar="FILE", help="show this tuning file and measure nothing")
        parser.add_argument("--again", action="store_true", help="measure even if there is a tuning")
    if command not in ("serve", "export", "quantize"):
        parser.add_argument("--json", action="store_true", help="JSON lines, as for several images")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _add_precisions(group: argparse._ArgumentGroup, *, written: bool) -> None:
    known = [value for value in get_args(Weights) if not (written and value == "fit")]
    help = "of the text decoder: in 8 or 4 bits" + ("" if written else ", or the best that fit the memory")
    group.add_argument("--weights", default="int4" if written else "auto", choices=known, help=help)
    help = "of the image encoder: in 8 bits"
    group.add_argument("--vision-weights", default="auto", choices=get_args(VisionWeights), help=help)


def _add_skill_options(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("--allow-urls", action="store_true", help="fetch images that are https URLs of public hosts")
    parser.add_argument("--plot", metavar="OUT", help="draw: OUT is a file for one image, a folder for several")
    if command == "caption":
        parser.add_argument("--length", choices=("short", "normal", "long"), default="normal")
    if command == "query":
        parser.add_argument("--reasoning", action="store_true", help="think first, and return the thoughts too")
        group = parser.add_argument_group("typed answers", "The form of the answer; one of these.")
        forms = group.add_mutually_exclusive_group()
        source = "a JSON Schema in a file, or a type in a module"
        forms.add_argument("--schema", metavar="FILE|MODULE:NAME", help=source)
        forms.add_argument("--choices", metavar="A,B,...", help="one of these texts")
        forms.add_argument("--regex", metavar="PATTERN", help="a text that this pattern matches as a whole")
        retries = "ask again, so often, where validators of the schema's type refuse the answer (default: 0)"
        group.add_argument("--retries", type=int, default=0, metavar="N", help=retries)
    if command in SPATIAL:
        parser.set_defaults(stream=False)
        _add_search(parser, "; then every argument is an image")
        _add_video_options(parser)
    else:
        parser.add_argument("--stream", action="store_true", help="plain text as it is generated, of one image")
        parser.add_argument("--stop", action="append", metavar="TEXT", help="end the answer before this; repeatable")
    _add_settings(parser, objects=command in SPATIAL)
    parser.add_argument("--strict", action="store_true", help="an answer cut short by a limit is an error")


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("coco", "yolo"), required=True, help="how the data set is written")
    parser.add_argument("--output", metavar="DIR", help="a new folder (default: the images' folder and the format)")
    parser.add_argument("--task", choices=("detect", "segment"), default="detect", help="boxes or outlines")
    _add_search(parser, "", required=True)
    _add_settings(parser, objects=True)
    parser.add_argument("--strict", action="store_true", help="a list cut short by a limit is an error of its image")


def _add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="the folder (default: that of the command line)")
    parser.add_argument("--prune", action="store_true", help="remove what these say; everything where none is given")
    parser.add_argument("--unused-days", type=float, metavar="N", help="what was not used for so long")
    parser.add_argument(
        "--left-mb", type=float, metavar="MB", help="what was not used for longest, until so much is left"
    )
    parser.add_argument("--tenant", metavar="NAME", help="of one cache salt alone, or of a folder in the list")


def _add_realtime_options(parser: argparse.ArgumentParser) -> None:
    source = "a folder of images, a GIF or WebP, a video, a camera's number, or the address of a stream such as rtsp://"
    parser.add_argument("--source", required=True, help=f"{source} (the last three need photonlite[video])")
    parser.add_argument("--task", choices=SKILLS, default="detect", help="what to ask about every frame")
    _add_search(parser, "")
    parser.add_argument("--question", help="what to answer, for the task query")
    parser.add_argument("--length", choices=("short", "normal", "long"), help="of a caption")
    parser.add_argument("--track", action="store_true", help=TRACK)
    group = parser.add_argument_group("time")
    group.add_argument("--rate", type=float, metavar="HZ", help="frames per second (default: the source's own)")
    group.add_argument("--duration", type=float, metavar="S", help="seconds; a shorter source is repeated")
    group.add_argument("--deadline-ms", type=float, metavar="MS", help="an answer is worthless after this time")
    group.add_argument("--in-flight", type=int, default=1, metavar="N", help="frames asked about at a time")
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="OUT", help="the answered frames, drawn: .gif, .webp, or .mp4 and .avi")
    group.add_argument("--plain", action="store_true", help="a line each second in place of the live view")
    _add_settings(parser, objects=True)


def _add_video_options(parser: argparse.ArgumentParser) -> None:
    about = "For a video (needs photonlite[video]), an animation or a folder of frames."
    group = parser.add_argument_group("video", about)
    group.add_argument("--output", metavar="OUT", help="the frames, drawn, with the sound: .mp4, .mkv, .webm, ...")
    group.add_argument("--every", type=int, metavar="N", help="ask about every N-th frame; others show its objects")
    group.add_argument("--track", action="store_true", help=TRACK)
    group.add_argument("--rate", type=float, metavar="HZ", help="frames per second of a folder or an animation")


def _add_search(parser: argparse.ArgumentParser, note: str, *, required: bool = False) -> None:
    group = parser.add_argument_group("objects")
    what = f"what to find; repeat it for several{note}"
    group.add_argument("--object", action="append", metavar="NAME", required=required, help=what)
    group.add_argument("--min-score", type=float, metavar="S", help="leave out what has a lower score")
    best = "of overlapping finds of different names keep all, or the best score (default: keep)"
    tile = "also look in overlapping tiles, for small and many objects: rows x columns, pixels of a side, or auto"
    group.add_argument("--tile", metavar="3x3|640|auto", help=tile)
    group.add_argument("--overlap", choices=("keep", "best"), help=best)


def _add_settings(parser: argparse.ArgumentParser, *, objects: bool) -> None:
    group = parser.add_argument_group("settings", "Greedy unless a temperature is given.")
    group.add_argument("--temperature", type=float, help="0 takes the likeliest token, higher values vary")
    group.add_argument("--top-p", type=float, help="sample from the likeliest tokens of this total probability")
    group.add_argument("--top-k", type=int, help="sample from so many of the likeliest tokens")
    penalty = "above 1, make words of the question and the answer so far less likely"
    group.add_argument("--repetition-penalty", type=float, metavar="P", help=penalty)
    group.add_argument("--max-tokens", type=int, help="stop a text or an outline after this many tokens")
    if objects:
        group.add_argument("--max-objects", type=int, help="stop a list after this many objects")
    group.add_argument("--seed", type=int, help="makes sampling repeatable")


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in SETTINGS if getattr(options, name, None) is not None}


def given_search(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name, None) for name in ("min_score", "overlap", "tile")}
    return {name: value for name, value in given.items() if value is not None}


def _check_skill(command: str, options: argparse.Namespace) -> None:
    hint = f"(see photonlite {command} --help)"
    if not options.images:
        takes = f"{command} takes IMAGE and then {TEXT[command]}"
        raise InputError(f"there is one argument, {options.text!r}, but {takes} {hint}")
    words = [one for one in options.images[1:] if re.fullmatch(r"[\w ',]+", one) and not os.path.exists(one)]
    if words and isinstance(options.text, str):
        several = " ".join(f"--object {one!r}" for one in (*words, options.text))
        advice = "put the question in quotes" if command == "query" else f"for several objects give {several}"
        raise InputError(f"there is no image {words[0]!r}: {advice} {hint}")
    if options.images.count("-") > 1:
        raise InputError("stdin holds one image: give - once")
    if options.stream and options.json:
        raise InputError(f"--stream prints plain text and --json prints JSON: give one of them {hint}")

"""Options of `photonlite realtime`. Nothing here imports torch."""

import argparse
from typing import Any

TASKS = ("detect", "point", "segment", "caption", "query")
SETTINGS = ("temperature", "top_p", "max_tokens", "max_objects", "seed")


def add_realtime_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the command's parser."""
    parser.add_argument(
        "--source",
        required=True,
        help="a folder of images, a GIF or WebP, a video, or a camera's number (videos and cameras need "
        "photonlite[video])",
    )
    parser.add_argument("--task", choices=TASKS, default="detect", help="what to ask about every frame")
    parser.add_argument("--object", help="what to detect, point at or segment")
    parser.add_argument("--question", help="what to answer, for the task query")
    parser.add_argument("--length", choices=("short", "normal", "long"), help="of a caption")
    group = parser.add_argument_group("time")
    group.add_argument("--rate", type=float, metavar="HZ", help="frames per second (default: the source's own)")
    group.add_argument("--duration", type=float, metavar="S", help="seconds; a source that ends before is repeated")
    group.add_argument("--deadline-ms", type=float, metavar="MS", help="after so long an answer is worthless")
    group.add_argument("--in-flight", type=int, default=1, metavar="N", help="frames that are asked about at a time")
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="OUT", help="the answered frames, drawn: .gif, .webp, or .mp4 and .avi")
    group.add_argument("--plain", action="store_true", help="a line each second in place of the live view")
    group = parser.add_argument_group("settings")
    group.add_argument("--temperature", type=float, help="0 takes the likeliest token, higher values vary")
    group.add_argument("--top-p", type=float, help="sample from the likeliest tokens of this total probability")
    group.add_argument("--max-tokens", type=int, help="stop a text or an outline after this many tokens")
    group.add_argument("--max-objects", type=int, help="stop a list after this many objects")
    group.add_argument("--seed", type=int, help="makes sampling repeatable")


def question_of(options: argparse.Namespace) -> dict[str, Any]:
    """Give the arguments of `RealtimeLoop` that say what is asked."""
    given = {name: getattr(options, name) for name in ("task", "object", "question", "length", "deadline_ms")}
    settings = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    asked = {name: value for name, value in given.items() if value is not None}
    return {**asked, "settings": settings} if settings else asked

"""One skill on every frame of a video, an animation or a folder of frames."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from PIL import Image
from tqdm import tqdm

from photonlite.cli.inputs import report_skipped
from photonlite.cli.parser import SPATIAL
from photonlite.cli.run import IMAGE_FAILURES, advise_of_joined, ask_model, check_request, load_model, to_json
from photonlite.errors import ImageError, InputError
from photonlite.realtime.sources import DEFAULT_RATE, open_source
from photonlite.results.drawing.style import open_image
from photonlite.results.tracking import Tracker
from photonlite.video.answers import answer_frames
from photonlite.video.reader import LIVE_URL, VideoFrame, is_video_file, video_frames, video_info
from photonlite.video.writer import VideoWriter

MOST_BYTES: Final = 512 << 20  # of frames between the reader and the writer
UNKNOWN_BYTES: Final = 24 << 20  # of a frame whose size shows when it is read
MOST_REQUESTS: Final = 32


class Footage(NamedTuple):
    frames: Iterator[VideoFrame]
    rate: float  # frames per second
    total: int | None  # frames, about
    frame_bytes: int
    sound: Path | None  # the video that has the sound
    pixel_aspect: Fraction = Fraction(1)


def is_video(options: argparse.Namespace) -> bool:
    """Whether the input is a video, or to be treated as one."""
    if options.command not in SPATIAL:
        return False
    asked = options.output is not None or options.every is not None or options.rate is not None or options.track
    return asked or any(_names_video(name) for name in options.images)


def _names_video(name: str) -> bool:
    live = LIVE_URL.match(name)
    if live is not None:
        return not live[1].lower().startswith("http")  # which may be an image
    return is_video_file(name)


def run_video(options: argparse.Namespace) -> int:
    """Answer, draw and write frames; returns 2 if one of them failed. An interrupted video is finished, and plays."""
    if len(options.images) > 1:
        raise InputError(f"{len(options.images)} sources were given: a video is answered by itself")
    if options.plot is not None:
        raise InputError("--plot draws images: name a video with --output")
    every = 1 if options.every is None else options.every
    if every < 1:
        raise InputError(f"--every is {every}: give a whole number of at least 1")
    check_request(options, options.command, options.text)
    advise_of_joined(options.text)
    footage = open_footage(options.images[0], options.rate)
    tracker = Tracker(rate=footage.rate / every) if options.track else None
    asked = failed = 0
    with ExitStack() as stack:
        writer = None if options.output is None else stack.enter_context(_writer(options, footage))
        model = load_model(options, {} if options.store is None else {"store": options.store})
        window = _window(model, footage, every)
        answers = answer_frames(footage.frames, partial(_ask, model, options), every=every, window=window)
        stack.enter_context(closing(answers))
        bar = stack.enter_context(tqdm(answers, total=footage.total, unit="frame", disable=None))
        last: Any = None
        for number, (frame, found) in enumerate(bar):
            line: dict[str, Any] = {"frame": number, "time_s": round(frame.time_s, 3)}
            asked += found is not None
            if isinstance(found, Exception):
                failed, last = failed + 1, None
                line["error"] = {"type": type(found).__name__, "message": str(found)}
            elif found is not None:
                last = found if tracker is None else tracker.update(found, frame.time_s)
                line |= {**last, **({"truncated": True} if last.truncated else {})}
            if found is not None and (options.json or writer is None):
                with tqdm.external_write_mode(file=sys.stdout):  # the bar and the lines may share a terminal
                    print(to_json(line), flush=True)
            if writer is not None:
                _draw(writer, frame, last)
    if failed:
        print(f"photonlite: error: {failed} of {asked} frames failed", file=sys.stderr)
    return 2 if failed else 0


def open_footage(source: str, rate: float | None) -> Footage:
    """Open a video, an animation or a folder of images; raises an InputError for what has no end."""
    if rate is not None and not 0 < rate <= 1000:
        raise InputError(f"--rate is {rate:g}: give frames per second, above 0 and up to 1000")
    path = Path(source)
    if path.is_file() and is_video_file(path):
        if rate is not None:
            raise InputError("--rate is for folders and animations: a video has its own times")
        info = video_info(path)
        steps = info.rate or DEFAULT_RATE
        total = None if info.duration_s is None else round(info.duration_s * steps)
        return Footage(video_frames(path), steps, total, 3 * info.size[0] * info.size[1], path, info.pixel_aspect)
    opened = open_source(source)
    report_skipped(source, opened.skipped)
    if not opened.repeatable:
        raise InputError(f"{source!r} has no end: photonlite realtime --source {source} answers its newest frames")
    steps = rate or opened.rate or DEFAULT_RATE
    return Footage(_timed(opened.play(), 1 / steps, own=rate is None), steps, opened.count, UNKNOWN_BYTES, None)


def _timed(images: Iterator[Any], step_s: float, *, own: bool) -> Iterator[VideoFrame]:
    """Yield images with their times: each lasts `step_s`, or with `own` its own duration where it has one."""
    time_s = 0.0
    for image in images:
        yield VideoFrame(image, time_s)
        own_ms = image.info.get("duration", 0) if own and isinstance(image, Image.Image) else 0
        time_s += own_ms / 1000 if own_ms > 0 else step_s


@contextmanager
def _writer(options: argparse.Namespace, footage: Footage) -> Iterator[VideoWriter]:
    """Open the output, and say at the end what became of it."""
    out = Path(options.output)
    if out.resolve() == Path(options.images[0]).resolve():
        raise InputError(f"--output {out} would overwrite the video itself: name another file")
    writer = VideoWriter(out, footage.rate, pixel_aspect=footage.pixel_aspect, sound_of=footage.sound)
    try:
        with writer:
            yield writer
    finally:
        if writer.frames:
            print(f"drawn in {out}: {writer.frames} frames", file=sys.stderr)
        if writer.silenced:
            lost = f"{out.suffix} cannot hold all of the sound ({', '.join(writer.silenced)})"
            advice = "" if out.suffix == ".mkv" else ": a name in .mkv can keep more of it"
            print(f"photonlite: {lost}{advice}", file=sys.stderr)


def _window(model: Any, footage: Footage, every: int) -> int:
    """Return how many frames may exist at a time: enough to keep the engine busy, and no more than fit the memory."""
    busy = every * min(2 * model.max_batch, MOST_REQUESTS)
    return int(max(2, min(busy, MOST_BYTES // footage.frame_bytes)))


def _ask(model: Any, options: argparse.Namespace, frame: VideoFrame) -> Any:
    """Ask about a frame; an error of this frame alone takes the place of its result."""
    try:
        return ask_model(model, options, frame.pixels, {})
    except IMAGE_FAILURES as error:
        return error


def _draw(writer: VideoWriter, frame: VideoFrame, found: Any) -> None:
    """Write a frame with its items drawn; an image that cannot be read is left out."""
    try:
        image = open_image(frame.pixels)
    except ImageError:
        return
    writer.add(image if found is None or not found.labels else found.plot(image), frame.time_s)

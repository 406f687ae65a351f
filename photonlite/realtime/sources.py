"""Where frames come from: a folder, an image or an animation, a video file, a camera, a callable, or any iterable.

| source | frames |
|---|---|
| a folder | its images by name, animations frame by frame |
| an image, an animated GIF, WebP, AVIF or PNG | its frames, at the rate that the file gives |
| a video file | its frames, at the rate that the file gives; needs PyAV |
| a whole number, "0", "camera:0" | what that camera sees, as it comes; needs PyAV |
| "rtsp://...", "http://...", ... | what a stream sends, as it comes; connected again when it breaks off; needs PyAV |
| a callable | what it returns, until it returns None |
| an iterable | its items |

A file that cannot be read is one frame that fails when it is answered. A `Feed` plays frames into a
real-time loop at a steady rate.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageNotFoundError, InputError, SettingsError
from photonlite.images.files import UnreadableImage, folder_images, image_frames
from photonlite.realtime.loop import RealtimeLoop
from photonlite.settings import plain
from photonlite.video.reader import (
    LIVE_URL,
    camera_frames,
    is_video_file,
    stream_frames,
    video_frames,
    video_info,
)

Source: TypeAlias = str | os.PathLike[str] | int | Callable[[], Any] | Iterable[Any]
"""What `open_source` takes."""

DEFAULT_RATE: Final = 30.0
_CAMERA: Final = re.compile(r"(?:camera:)?(\d{1,3})|/dev/video(\d{1,3})")


@dataclass(frozen=True)
class Frames:
    play: Callable[..., Iterator[Any]] = field(repr=False)  # from the start
    rate: float | None  # frames per second; None where they come at their own pace
    repeatable: bool  # whether playing again gives the same frames again
    count: int | None = None  # files in a folder
    skipped: tuple[str, ...] = ()  # what else is in the folder
    waits: bool = False  # whether `play` takes `wait`, which waits for so many seconds, and returns whether to stop


def open_source(source: Source) -> Frames:
    """Find out what a source is, and check that it is there; nothing is read before it is played.

    Raises an ImageError, an InputError, or a MissingDependencyError where PyAV is needed.
    """
    source = plain(source)
    if isinstance(source, int) and not isinstance(source, bool):
        return Frames(partial(camera_frames, source), None, repeatable=False)
    if isinstance(source, str | os.PathLike):
        camera = _CAMERA.fullmatch(str(source))
        if camera is not None and not Path(source).is_file():
            return open_source(int(camera[1] or camera[2]))
        if LIVE_URL.match(str(source)):
            return Frames(partial(stream_frames, str(source)), None, repeatable=False, waits=True)
        return _open_path(Path(source))
    if callable(source):
        return Frames(partial(_called, source), DEFAULT_RATE, repeatable=False)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return Frames(lambda: iter(source), DEFAULT_RATE, repeatable=iter(source) is not source)
    raise InputError(
        f"an object of type {type(source).__name__} is not a source of frames: give a folder, a file, a camera's "
        "number or a callable"
    )


def _called(source: Callable[[], Any]) -> Iterator[Any]:
    while (frame := source()) is not None:  # not iter(source, None): arrays compare element by element
        yield frame


def _open_path(path: Path) -> Frames:
    if path.is_dir():
        images, skipped = folder_images(path)
        rate = _rate_of(images[0]) if len(images) == 1 else DEFAULT_RATE
        return Frames(partial(_played, images), rate, repeatable=True, count=len(images), skipped=tuple(skipped))
    if not path.is_file():
        raise ImageNotFoundError(
            f"there is no source {str(path)!r}: give a folder, an animation, a video, a camera's number such as 0, or "
            "the address of a stream"
        )
    if is_video_file(path):
        return Frames(lambda: (frame.pixels for frame in video_frames(path)), video_info(path).rate, repeatable=True)
    return Frames(partial(_played, [path]), _rate_of(path), repeatable=True)


def _played(paths: Sequence[Path]) -> Iterator[Image.Image | UnreadableImage]:
    limits = ImageLimits.from_env()
    return (frame for path in paths for frame in image_frames(path, limits))


def _rate_of(path: Path) -> float:
    """Return the frames per second of an animation, from its first frame; raises an ImageError."""
    first = next(_played([path]))
    if isinstance(first, UnreadableImage):
        raise first.error
    milliseconds = float(first.info.get("duration", 0))
    return 1000 / milliseconds if milliseconds > 0 else DEFAULT_RATE


def paced(
    frames: Iterator[Any], rate: float | None, clock: Callable[[], float], wait: Callable[[float], bool]
) -> Iterator[Any]:
    """Yield frames at so many per second, counted from the first; None yields them as they come.

    A source that falls behind by more than a frame starts counting anew, as a camera that has lost frames: it does not
    catch up in a burst. `wait` waits for so many seconds, and returns whether to stop.
    """
    due = clock()
    for frame in frames:
        now = clock()
        if rate is not None:
            if now - due > 1 / rate:
                due = now
            elif now < due and wait(due - now):
                return
            due += 1 / rate
        elif wait(0):
            return
        yield frame


class Feed:
    """Plays a source into a loop until it ends, a time is over, or it is stopped.

    `rate` is in frames per second, by default the source's own. A source that can be played again is, if `repeat`.
    """

    def __init__(
        self,
        loop: RealtimeLoop,
        frames: Frames,
        *,
        rate: float | None = None,
        duration_s: float | None = None,
        repeat: bool = False,
    ) -> None:
        for name, value in (("rate", rate), ("duration_s", duration_s)):
            number = isinstance(plain(value), int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < float("inf")):
                raise SettingsError(f"{name} is {value!r:.60}: give a number above 0")
        self.rate = frames.rate if rate is None else float(rate)
        self._loop = loop
        self._frames = frames
        self._end = None if duration_s is None else time.monotonic() + duration_s
        self._repeat = repeat and frames.repeatable
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="photonlite-feed", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the frames, for so many seconds at most; raises what the source has raised."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _work(self) -> None:
        try:
            for frame in paced(self._played(), self.rate, time.monotonic, self._pause):
                if self._loop.closed or self._over():
                    return
                self._loop.submit(frame)
        except Exception as error:
            if not (isinstance(error, InputError) and self._loop.closed):
                self._error = error

    def _pause(self, seconds: float) -> bool:
        """Wait until it is to end, and so many seconds at most; returns whether it is to end."""
        left = seconds if self._end is None else min(seconds, max(0.0, self._end - time.monotonic()))
        return self._stopping.wait(left) or self._loop.closed or self._over()

    def _over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def _played(self) -> Iterator[Any]:
        play = partial(self._frames.play, wait=self._pause) if self._frames.waits else self._frames.play
        played = True
        while played:
            played = False
            for frame in play():
                yield frame
                played = self._repeat

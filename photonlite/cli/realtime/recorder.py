"""Records answered frames, drawn, as an animation or a video that plays at their rate."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from PIL import Image

from photonlite.cli.outputs import check_writable
from photonlite.errors import InputError
from photonlite.realtime.frames import FrameResult
from photonlite.results.drawing.style import open_image
from photonlite.video.reader import pyav
from photonlite.video.writer import CODECS, VideoWriter

ANIMATIONS: Final[dict[str, dict[str, Any]]] = {".gif": {}, ".webp": {"quality": 80, "method": 2}}
VIDEO_RATE: Final = 30.0
MOST_BYTES: Final = 512 << 20  # of images that wait to be drawn, which is done after the loop has ended

_LONGEST_SIDE: Final = 640
_SHORTEST_MS: Final = 20  # viewers ignore shorter durations


class FrameRecorder:
    """Keeps answered frames until `save` draws and writes them."""

    def __init__(self, out: str) -> None:
        self._out = Path(out)
        self._suffix = self._out.suffix.lower()
        if self._suffix in CODECS:
            pyav()
        elif self._suffix not in ANIMATIONS:
            known = ", ".join((*ANIMATIONS, *CODECS))
            raise InputError(f"--output {out}: {self._suffix!r} is not an animation or a video: end it in {known}")
        check_writable("--output", self._out)
        self._results: list[FrameResult] = []
        self._bytes = 0
        self._left_out = 0

    def add(self, result: FrameResult) -> None:
        width, height = getattr(result.result, "picture_size", None) or (_LONGEST_SIDE, _LONGEST_SIDE)
        self._bytes += 3 * width * height
        if self._bytes > MOST_BYTES:
            self._left_out += 1
        else:
            self._results.append(result)

    def save(self) -> None:
        """Draw and write the file, if there are frames; raises OSError or InputError if it cannot be written."""
        if not self._results:
            return
        print(f"drawing {len(self._results)} frames ...", file=sys.stderr, flush=True)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        frames = _same_size([_drawn(result) for result in self._results])
        durations = durations_ms([result.arrived for result in self._results])
        if self._suffix in CODECS:
            _write_video(self._out, frames, durations)
        else:
            options: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": durations, "loop": 0}
            frames[0].save(self._out, **options, **ANIMATIONS[self._suffix])
        more = f", without the last {self._left_out}: they do not fit the memory" if self._left_out else ""
        print(f"drawn in {self._out}{more}", file=sys.stderr)


def durations_ms(times: list[float]) -> list[int]:
    """Return how long each frame, taken at that time in seconds, is shown: until the next one."""
    starts = [round(1000 * (time - times[0])) for time in times]
    gaps = [max(_SHORTEST_MS, after - before) for before, after in pairwise(starts)]
    return [*gaps, gaps[-1] if gaps else 100]


def _drawn(result: FrameResult) -> Image.Image:
    image = open_image(result.image)
    image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return result.result.plot(image) if hasattr(result.result, "plot") else image


def _same_size(frames: list[Image.Image]) -> list[Image.Image]:
    """Extend frames with white to the size of the largest: some have texts below them."""
    size = max(frame.width for frame in frames), max(frame.height for frame in frames)
    sheets = [Image.new("RGB", size, "white") for _ in frames]
    for sheet, frame in zip(sheets, frames, strict=True):
        sheet.paste(frame)
    return sheets


def _write_video(path: Path, frames: list[Image.Image], durations: list[int]) -> None:
    time_s = 0.0
    with VideoWriter(path, VIDEO_RATE) as writer:
        for frame, duration in zip(frames, durations, strict=True):
            writer.add(frame, time_s)
            time_s += duration / 1000
        writer.add(frames[-1], time_s - 1 / VIDEO_RATE)  # players show the last frame for one step

"""Writes images as a video, with the sound of another one."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from PIL import Image, ImageOps

from photonlite.errors import InputError
from photonlite.video.reader import pyav

CODECS: Final = {
    ".avi": "mpeg4",
    ".m4v": "libx264",
    ".mkv": "libx264",
    ".mov": "libx264",
    ".mp4": "libx264",
    ".webm": "libvpx-vp9",
}
_OPTIONS: Final = {
    "libx264": {"preset": "veryfast", "crf": "20"},
    "libvpx-vp9": {"crf": "32", "b": "0", "cpu-used": "6", "row-mt": "1"},
    "mpeg4": {"qmin": "3", "qmax": "3"},
}
_FORMATS: Final = {".m4v": "mp4"}  # others follow from the name
_CLOCK: Final = Fraction(1, 60_000)  # MPEG-4 counts at most 65,535 a second

_SQUARE: Final = Fraction(1)


def check_output(path: Path) -> None:
    """Raise `InputError` if the name is not that of a video, `MissingDependencyError` if PyAV is missing."""
    if path.suffix.lower() not in CODECS:
        raise InputError(f"{str(path)!r} does not end as a video does: end it in {', '.join(CODECS)}")
    pyav()


class VideoWriter:
    """Writes images at their times. All get the size of the first one: larger and smaller ones are fitted into it.

    Closing it makes the file playable, whatever has happened before; without a frame there is no file.

    Args:
        path: Of the file, which is overwritten.
        rate: Frames per second, about: every frame has its own time, except in AVI.
        pixel_aspect: Width to height of a pixel. WebM does not keep it: its images are scaled to square pixels.
        sound_of: The video whose sound is copied, up to the last frame; all of it if the ``with`` block ends normally.

    Raises:
        InputError: The file cannot be written, or its name is not that of a video.

    Attributes:
        frames: How many were written.
        silenced: Formats of sound that is left out, since the file's kind cannot hold it, or ends early, since it is
            damaged.
    """

    def __init__(
        self, path: Path, rate: float, *, pixel_aspect: Fraction = _SQUARE, sound_of: Path | None = None
    ) -> None:
        check_output(path)
        self.frames = 0
        self.silenced: list[str] = []
        self._path = path
        self._rate = Fraction(rate).limit_denominator(max(1, int(60_000 / max(1, rate))))  # both terms fit 16 bits
        squares = path.suffix.lower() == ".webm"
        self._scale, self._pixel_aspect = (pixel_aspect, _SQUARE) if squares else (_SQUARE, pixel_aspect)
        self._base = 1 / self._rate if path.suffix.lower() == ".avi" else _CLOCK
        self._new = not path.exists()
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()  # tells now whether it can be written; the first frame empties it
        self._sound_of = sound_of
        self._container: Any = None
        self._stream: Any = None
        self._sound: Sound | None = None
        self._last = -1
        self._broken = False  # whether a packet could not be written

    def add(self, image: Image.Image, time_s: float) -> None:
        """Write an RGB image; its time is moved on where it is not after that of the one before."""
        av = pyav()
        with self._writing():
            if self._scale != _SQUARE:
                image = image.resize((max(1, round(image.width * self._scale)), image.height))
            if self._container is None:
                self._start(image.size)
            size = self._stream.width, self._stream.height
            near = all(0 <= own - side < 2 for own, side in zip(image.size, size, strict=True))
            fitted = image.crop((0, 0, *size)) if near else ImageOps.pad(image, size)
            frame = av.VideoFrame.from_ndarray(np.asarray(fitted), format="rgb24")
            frame.pts = self._last = max(self._last + 1, round(time_s / self._base))
            frame.time_base = self._base
            packets = self._stream.encode(frame)
            self._broken = True
            self._container.mux(packets)
            self._broken = False
            self.frames += 1
            if self._sound is not None:
                self._sound.copy_until(time_s)

    def close(self, *, whole: bool = False) -> None:
        """Finish the file; `whole` copies the sound after the last frame too."""
        if self._container is None:
            if self._new:
                self._path.unlink(missing_ok=True)
            return
        container, self._container = self._container, None
        with self._writing(), container:
            try:
                if not self._broken:  # FFmpeg crashes where the header could not be written
                    container.mux(self._stream.encode(None))
                if self._sound is not None and whole:
                    self._sound.copy_until(float("inf"))
            finally:
                if self._sound is not None:
                    self._sound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close(whole=True)
        else:
            with suppress(InputError):  # the first error is the one to report
                self.close()

    def _start(self, size: tuple[int, int]) -> None:
        av = pyav()
        self._container = av.open(f"file:{self._path}", "w", format=_FORMATS.get(self._path.suffix.lower()))
        wanted = CODECS[self._path.suffix.lower()]
        codec = wanted if wanted in av.codecs_available else "mpeg4"  # some builds of FFmpeg lack x264
        self._stream = stream = self._container.add_stream(codec, rate=self._rate, options=_OPTIONS[codec])
        stream.width, stream.height = (max(2, side - side % 2) for side in size)  # chroma has half as many pixels
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = self._base
        stream.codec_context.sample_aspect_ratio = self._pixel_aspect
        if self._sound_of is not None:
            self._sound = Sound(self._sound_of, self._container)
            self.silenced = self._sound.left_out

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (pyav().FFmpegError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"the video {str(self._path)!r} cannot be written: {reason}") from error


def _holds(kind: str, path: Path, index: int) -> bool:
    """Whether a kind of file can hold a stream of sound, by trial: many a muxer says yes and fails at its end."""
    av = pyav()
    try:
        with av.open(f"file:{path}", metadata_errors="replace") as source, av.open(io.BytesIO(), "w", kind) as out:
            stream = source.streams[index]
            packet = next(packet for packet in source.demux(stream) if packet.dts is not None)
            packet.stream = out.add_stream_from_template(stream)
            out.mux(packet)
    except (av.FFmpegError, ValueError, LookupError, StopIteration):
        return False
    return True


class Sound:
    """Copies the sound of one file into another, without decoding it, up to where it cannot be copied.

    Where the clock of a stream starts again, as in files that were joined, its times go on.
    """

    def __init__(self, path: Path, out: Any) -> None:
        self._source = pyav().open(f"file:{path}", metadata_errors="replace")
        self._start = (self._source.start_time or 0) / 1_000_000
        names = {stream: getattr(stream.codec_context, "name", "unknown") for stream in self._source.streams.audio}
        held = [stream for stream in names if _holds(out.format.name, path, stream.index)]
        self.left_out = [name for stream, name in names.items() if stream not in held]
        self._targets = {stream.index: out.add_stream_from_template(stream) for stream in held}
        self._shifts = {stream.index: round(self._start / stream.time_base) for stream in held}
        self._ends: dict[int, tuple[int, int]] = {}  # the last packet's time in the copy, and its end
        self._packets = self._source.demux(held) if held else iter(())
        self._next: Any = None
        self._out = out

    def copy_until(self, time_s: float) -> None:
        try:
            while self._copied(time_s):
                pass
        except (pyav().FFmpegError, IndexError):  # IndexError: a packet of a stream that the header does not name
            self._packets, self._next = iter(()), None
            self.left_out += [target.codec_context.name for target in self._targets.values()]

    def _copied(self, time_s: float) -> bool:
        """Copy a packet; returns whether there was one that begins by then."""
        packet, self._next = self._next, None
        if packet is None and (packet := next(self._packets, None)) is None:
            return False
        if packet.dts is None:  # marks the end of a stream
            return True
        index = packet.stream_index
        last, end = self._ends.get(index, (None, 0))
        if last is not None and packet.dts - self._shifts[index] <= last:
            self._shifts[index] = packet.dts - end
        shift = self._shifts[index]
        if float((packet.dts - shift) * packet.time_base) > time_s:
            self._next = packet
            return False
        packet.dts -= shift
        packet.pts = None if packet.pts is None else packet.pts - shift
        self._ends[index] = packet.dts, packet.dts + max(1, packet.duration or 1)
        packet.stream = self._targets[index]
        self._out.mux(packet)
        return True

    def close(self) -> None:
        self._source.close()

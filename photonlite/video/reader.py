"""Frames of video files, cameras and network streams in RGB, upright, read by PyAV."""

import importlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from photonlite.errors import ImageDecodeError, InputError, MissingDependencyError

Pixels = npt.NDArray[np.uint8]

LIVE_URL: Final = re.compile(r"(rtsps?|rtmps?|srt|udp|rtp|https?)://", re.IGNORECASE)
"""Addresses of network streams."""

_SUFFIXES: Final = (
    ".264 .265 .3g2 .3gp .asf .avi .divx .dv .f4v .flv .h264 .h265 .hevc .ivf .m1v .m2t .m2ts .m2v .m4v .mjpeg .mjpg "
    ".mkv .mov .mp4 .mpe .mpeg .mpg .mts .mxf .nut .ogm .ogv .qt .rm .rmvb .ts .vob .webm .wmv .y4m"
)
# MP4 and its kin, Matroska, AVI, Flash, ASF, Ogg, MPEG. HEIC and AVIF begin like an MP4, with other brands.
_START: Final = re.compile(
    rb"....ftyp(?:iso|mp4|avc|qt|M4V|3g|MSNV|dash|[fF]4v|XAVC|mmp4|cmf)|\x1aE\xdf\xa3|RIFF....AVI |FLV\x01"
    rb"|0&\xb2u\x8ef\xcf\x11|OggS|\0\0\x01[\xba\xb3]",
    re.DOTALL,
)

RECONNECTS: Final = 30
PAUSE_S: Final = 1.0  # between two attempts
_TIMEOUT_S: Final = 5.0  # without a packet
_DEVICES: Final = {  # the format of libavdevice, how it names camera 0, its options
    "linux": ("v4l2", "/dev/video{}", {}),
    "darwin": ("avfoundation", "{}", {"framerate": "30"}),
}
_LEAST_STEP_S: Final = 0.001  # between two frames to which the file gives one time
_LOST_S: Final = 0.5  # a video that ends earlier than its header says by more than this has been cut off


@dataclass(frozen=True, slots=True)
class VideoInfo:
    rate: float | None  # frames per second; None where the file does not say
    duration_s: float | None
    size: tuple[int, int]  # width and height of the first frame, upright
    pixel_aspect: Fraction  # width to height of a pixel, upright


@dataclass(frozen=True, slots=True, eq=False)
class VideoFrame:
    pixels: Any  # [height, width, 3] RGB of a video; an image in any form of other sources
    time_s: float  # from the start


def pyav() -> Any:
    """Import PyAV, which is optional; raises `MissingDependencyError`."""
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise MissingDependencyError(
            "videos, cameras and streams need PyAV: pip install 'photonlite[video]' (folders, GIF and WebP do without)"
        ) from error


def is_video_file(name: str | Path) -> bool:
    """Whether a name, of no folder, ends as a video's does, or else its file begins as one."""
    named = Path(name).suffix.lower() in _SUFFIXES.split()
    if named or not os.path.isfile(name):
        return named and not os.path.isdir(name)
    try:
        with open(name, "rb") as file:
            return _START.match(file.read(16)) is not None
    except OSError:  # reading it raises the error
        return False


def video_info(path: Path) -> VideoInfo:
    """Read a video's header and first frame; raises `ImageDecodeError` if there is none."""
    with _opened_file(path) as (container, stream):
        first = next(_decoded(container, stream), None)
        if first is None:
            raise ImageDecodeError(f"the video {str(path)!r} has no frame that can be read")
        height, width = _upright(first).shape[:2]
        aspect = stream.sample_aspect_ratio or Fraction(1)
        rate = stream.average_rate or stream.base_rate
        known = rate is not None and 0 < rate < 1000
        upright = 1 / aspect if _display(first)[0] else aspect
        return VideoInfo(float(rate) if known else None, _duration(container, stream), (width, height), upright)


def video_frames(path: Path) -> Iterator[VideoFrame]:
    """Yield the frames of a file with their times, which strictly increase; a damaged packet is skipped.

    Where the file's clock starts again, as in files that were joined, times go on.
    Raises `ImageDecodeError` after the last frame if the file ends earlier than its header says.
    """
    with _opened_file(path) as (container, stream):
        start = (container.start_time or 0) / 1_000_000
        step = 1 / float(stream.average_rate or 30)
        now, end = -step, 0.0
        for frame in _decoded(container, stream):
            known = frame.time is not None and math.isfinite(frame.time)
            time_s = frame.time - start if known else now + step
            if time_s < now - step:  # less is the inaccuracy of one clock
                start += time_s - (now + step)
                time_s = now + step
            # Matroska counts milliseconds: frames of a fast camera have equal times.
            now = max(0.0, time_s if time_s > now else now + min(step / 2, _LEAST_STEP_S))
            end = now + float((frame.duration or 0) * (frame.time_base or 0))  # the last frame may stand for long
            yield VideoFrame(_upright(frame), now)
        duration = _duration(container, stream)
        if duration is not None and max(end, now + 2 * step) + _LOST_S < duration:
            raise ImageDecodeError(
                f"the video {str(path)!r} ends early: {max(end, now + step):.1f} of {duration:.1f} seconds can be read"
            )


def camera_frames(number: int) -> Iterator[Pixels]:
    """Yield what a camera sees, [height, width, 3] RGB, for as long as it gives frames."""
    av = pyav()
    if sys.platform not in _DEVICES:
        raise InputError(f"cameras cannot be opened by number on {sys.platform}: give the address of a stream")
    kind, name, options = _DEVICES[sys.platform]
    try:
        container = av.open(name.format(number), format=kind, options=options, metadata_errors="replace")
    except (av.FFmpegError, OSError) as error:
        raise InputError(f"camera {number} cannot be opened: check that it is connected and not in use") from error
    with container:
        try:
            yield from _live_frames(container)
        except (av.FFmpegError, OSError) as error:
            raise InputError(f"camera {number} was lost: {_reason(error)}; check that it is connected") from error


def stream_frames(url: str, wait: Callable[[float], object] = time.sleep) -> Iterator[Pixels]:
    """Yield the frames of a network stream, [height, width, 3] RGB; connects again when it breaks off.

    A stream over HTTP that ends without an error has ended. Raises `InputError` if the first connection fails, or 30
    attempts in a row, a second apart, to connect again. `wait` waits for so many seconds, and returns whether to stop.
    """
    av = pyav()
    failures, connected = 0, False
    options = {"rtsp_transport": "tcp"} if url.lower().startswith("rtsp") else {}
    while True:
        cause: Exception | None = None
        try:
            with av.open(url, options=options, timeout=_TIMEOUT_S, metadata_errors="replace") as container:
                for frame in _live_frames(container):
                    failures, connected = 0, True
                    yield frame
        except (av.FFmpegError, OSError) as error:
            cause = error
        if cause is None and url.lower().startswith("http"):
            return
        failures += 1
        if not connected or failures > RECONNECTS:
            place = re.sub(r"//[^/]*@", "//", url)  # without user and password
            state = f"was lost, and {RECONNECTS} attempts to connect again failed" if connected else "cannot be opened"
            raise InputError(f"the stream {place!r} {state}: {_reason(cause)}") from cause
        if wait(PAUSE_S):
            return


def _reason(error: Exception | None) -> str:
    return "it has no frames" if error is None else str(getattr(error, "strerror", None) or error)


@contextmanager
def _opened_file(path: Path) -> Iterator[tuple[Any, Any]]:
    av = pyav()
    try:
        # Without "file:" a name with a colon is read as an address.
        container = av.open(f"file:{path}", metadata_errors="replace")
    except (av.FFmpegError, OSError) as error:
        raise ImageDecodeError(
            f"{str(path)!r} cannot be read as a video: {_reason(error)}; convert it to MP4 with H.264"
        ) from error
    with container:
        if not container.streams.video:
            raise ImageDecodeError(f"{str(path)!r} holds no video, only {_kinds(container)}")
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        yield container, stream


def _kinds(container: Any) -> str:
    return ", ".join(sorted({str(stream.type) for stream in container.streams})) or "nothing"


def _live_frames(container: Any) -> Iterator[Pixels]:
    """Yield frames as they come: decoders that work on several frames at a time would hold them back."""
    if not container.streams.video:
        raise InputError(f"the stream holds no video, only {_kinds(container)}")
    stream = container.streams.video[0]
    stream.thread_type = "SLICE"
    for frame in _decoded(container, stream, live=True):
        yield _upright(frame)


def _decoded(container: Any, stream: Any, *, live: bool = False) -> Iterator[Any]:
    """Yield frames up to where the file is cut off or cannot be read; a live source raises what breaks it off."""
    av = pyav()
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except IndexError:  # a packet of a stream that the header does not name
            return
        except av.FFmpegError as error:
            if live and not isinstance(error, av.InvalidDataError):
                raise
            return
        if packet is None:
            return
        try:
            frames = packet.decode()
        except av.DecoderNotFoundError as error:
            codec = stream.codec_context
            named = "a format of its own" if codec is None else repr(codec.name)
            raise ImageDecodeError(
                f"the video is in {named}, for which there is no decoder: convert it to MP4 with H.264"
            ) from error
        except av.FFmpegError:
            continue
        yield from frames


def _display(frame: Any) -> tuple[bool, bool, bool]:
    """Return what the file asks for, in this order: swap rows and columns, mirror left and right, top and bottom.

    The display matrix moves (x, y) to (a x + c y, b x + d y); other angles than quarter turns are rounded to one.
    """
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
        a, b, _, c, d = (0,) * 5 if data is None else np.frombuffer(bytes(data), np.int32)[:5].tolist()
    except ValueError:  # PyAV does not know all kinds of side data
        turn = math.radians(frame.rotation)  # counterclockwise
        a, b, c, d = math.cos(turn), -math.sin(turn), math.sin(turn), math.cos(turn)
    return (False, a < 0, d < 0) if abs(a) + abs(d) >= abs(b) + abs(c) else (True, c < 0, b < 0)


def _upright(frame: Any) -> Pixels:
    pixels: Pixels = frame.to_ndarray(format="rgb24")
    swapped, across, down = _display(frame)
    pixels = pixels.transpose(1, 0, 2) if swapped else pixels
    return np.ascontiguousarray(pixels[:: -1 if down else 1, :: -1 if across else 1])


def _duration(container: Any, stream: Any) -> float | None:
    """Return seconds of the video stream; the file's own tell of it only where it holds nothing else."""
    if stream.duration is not None:
        base: Fraction = stream.time_base
        return float(stream.duration * base)
    alone = len(container.streams) == 1 and container.duration is not None
    return container.duration / 1_000_000 if alone else None

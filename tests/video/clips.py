"""Small videos, made by PyAV."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

RATE = 20
LEVELS = 6
"""Red of a frame's lower half in steps of `LEVELS`; the upper half is blue."""


def make_clip(
    path: Path,
    frames: int = 10,
    size: tuple[int, int] = (64, 48),
    *,
    sound: str | None = None,
    layout: str = "mono",
    rotation: int = 0,
    codec: str = "libx264",
    aspect: Fraction = Fraction(1),
    **options: str,
) -> Path:
    """Write a video of 20 frames a second; `sound` names a codec."""
    width, height = size
    with av.open(str(path), "w", options=options) as out:
        stream: Any = out.add_stream(codec, rate=RATE)
        stream.codec_context.gop_size = 5
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.sample_aspect_ratio = aspect
        if rotation:
            stream.set_display_rotation(rotation)
        voice: Any = None if sound is None else out.add_stream(sound, rate=48_000, layout=layout)
        for number in range(frames):
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[: height // 2, :, 2] = 255
            pixels[height // 2 :, :, 0] = number % 40 * LEVELS
            image = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            image.pts = number
            out.mux(stream.encode(image))
            if voice is not None:
                out.mux(voice.encode(_silence(number, voice)))
        out.mux(stream.encode(None))
        if voice is not None:
            out.mux(voice.encode(None))
    return path


def make_sound(path: Path) -> Path:
    """Write a file that holds sound alone."""
    with av.open(str(path), "w") as out:
        voice: Any = out.add_stream("aac", rate=48_000, layout="mono")
        out.mux(voice.encode(_silence(0, voice)))
        out.mux(voice.encode(None))
    return path


def place_matrix(path: Path, *matrix: float) -> Path:
    """Give an MP4 a display matrix: (x, y) is shown at (a x + c y, b x + d y)."""
    a, b, c, d = (round(value * (1 << 16)) for value in matrix)
    data = bytearray(path.read_bytes())
    start = data.find(b"tkhd") + 44
    data[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def timed_clip(path: Path, times_ms: list[float]) -> Path:
    """Write a video of one frame at each time."""
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        stream.codec_context.time_base = clock = Fraction(1, 1_000_000)
        for time_ms in times_ms:
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(1000 * time_ms), clock
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def reds(frames: Any) -> list[int]:
    """Return the number of each frame by its colour; `frames` are arrays."""
    return [round(int(frame[-1, 0, 0]) / LEVELS) for frame in frames]


def _silence(number: int, voice: Any) -> Any:
    count = 48_000 // RATE
    frame = av.AudioFrame(voice.codec_context.format.name, voice.codec_context.layout.name, count)
    for plane in frame.planes:
        plane.update(bytes(plane.buffer_size))
    frame.sample_rate, frame.pts = 48_000, number * count
    return frame

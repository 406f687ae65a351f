"""Small videos, made by PyAV."""

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
        voice: Any = None if sound is None else out.add_stream(sound, rate=48_000, layout="mono")
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


def reds(frames: Any) -> list[int]:
    """Return the number of each frame by its colour; `frames` are arrays."""
    return [round(int(frame[-1, 0, 0]) / LEVELS) for frame in frames]


def _silence(number: int, voice: Any) -> Any:
    count = 48_000 // RATE
    kind, of = ("fltp", np.float32) if voice.codec_context.name == "aac" else ("s16", np.int16)
    frame = av.AudioFrame.from_ndarray(np.zeros((1, count), of), format=kind, layout="mono")
    frame.sample_rate, frame.pts = 48_000, number * count
    return frame

"""Video files and cameras, through OpenCV, which is asked for when they are."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from photonlite.errors import ImageDecodeError, InputError, MissingDependencyError

Pixels = npt.NDArray[np.uint8]


def opencv() -> Any:
    """Give the module `cv2`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        return import_module("cv2")
    except ImportError as error:
        raise MissingDependencyError(
            "videos and cameras need OpenCV: pip install 'photonlite[video]' (folders, GIF and WebP do without it)"
        ) from error


def camera_frames(number: int) -> Iterator[Pixels]:
    """Give what a camera sees, [height, width, 3] RGB, for as long as it gives frames.

    Raises:
        InputError: There is no such camera, or it is in use.
    """
    cv2 = opencv()
    with _Capture(cv2, number) as capture:
        if not capture.opened:
            raise InputError(f"camera {number} cannot be opened: check that it is connected and not in use")
        yield from capture.frames()


def video_frames(path: Path) -> Iterator[Pixels]:
    """Give the frames of a video file, [height, width, 3] RGB.

    Raises:
        ImageDecodeError: OpenCV cannot read it.
    """
    with _opened(path) as capture:
        yield from capture.frames()


def video_rate(path: Path) -> float | None:
    """Give the frames per second of a video file; None where it does not say.

    Raises:
        ImageDecodeError: OpenCV cannot read it.
    """
    with _opened(path) as capture:
        return capture.rate


def _opened(path: Path) -> "_Capture":
    capture = _Capture(opencv(), str(path))
    if not capture.opened:
        raise ImageDecodeError(f"{str(path)!r} cannot be read as a video: convert it to MP4 with H.264")
    return capture


class _Capture:
    """OpenCV's reader, closed with its block."""

    def __init__(self, cv2: Any, source: int | str) -> None:
        self._cv2 = cv2
        self._capture = cv2.VideoCapture(source)
        if isinstance(source, int):
            self._capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # old frames are of no use

    @property
    def opened(self) -> bool:
        return bool(self._capture.isOpened())

    @property
    def rate(self) -> float | None:
        rate = float(self._capture.get(self._cv2.CAP_PROP_FPS))
        return rate if 0 < rate < 1000 else None

    def frames(self) -> Iterator[Pixels]:
        while True:
            there, frame = self._capture.read()
            if not there:
                return
            yield self._cv2.cvtColor(frame, self._cv2.COLOR_BGR2RGB)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._capture.release()

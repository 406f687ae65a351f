import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from photonlite.errors import ImageDecodeError, InputError, MissingDependencyError
from photonlite.realtime.sources import camera_frames, open_source


def test_a_video_plays_in_rgb_at_its_own_rate(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 20, (64, 48))
    for level in (0, 100, 200):
        writer.write(np.full((48, 64, 3), (0, 0, level), np.uint8))  # blue, green, red
    writer.release()

    frames = open_source(path)
    played = list(frames.play())

    assert frames.rate == 20
    assert [frame.shape for frame in played] == [(48, 64, 3)] * 3
    assert [int(frame[0, 0, 0]) for frame in played] == pytest.approx([0, 100, 200], abs=8)
    assert max(int(frame[0, 0, 2]) for frame in played) < 16


def test_broken_videos_are_refused_when_opened(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"no video at all")

    with pytest.raises(ImageDecodeError, match="cannot be read as a video"):
        open_source(path)


class FakeCamera:
    """Stands for `cv2`: one camera, number 0, that gives two frames and is then unplugged."""

    CAP_PROP_BUFFERSIZE = CAP_PROP_FPS = COLOR_BGR2RGB = 0
    released = 0

    def VideoCapture(self, number: int) -> "FakeCamera":  # noqa: N802 - OpenCV's name
        self.frames = [np.full((1, 1, 3), value, np.uint8) for value in (1, 2)] if number == 0 else []
        return self

    def isOpened(self) -> bool:  # noqa: N802
        return bool(self.frames)

    def set(self, what: int, value: int) -> None:
        pass

    def read(self) -> tuple[bool, Any]:
        return (True, self.frames.pop(0)) if self.frames else (False, None)

    def cvtColor(self, frame: Any, how: int) -> Any:  # noqa: N802
        return frame

    def release(self) -> None:
        self.released += 1


def test_a_camera_is_read_until_it_has_no_frame_and_then_released(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = FakeCamera()
    monkeypatch.setitem(sys.modules, "cv2", camera)  # type: ignore[arg-type]

    assert [int(frame[0, 0, 0]) for frame in camera_frames(0)] == [1, 2]
    assert camera.released == 1
    with pytest.raises(InputError, match="camera 7 cannot be opened"):
        next(camera_frames(7))
    assert camera.released == 2


def test_without_opencv_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    (tmp_path / "clip.mp4").touch()

    with pytest.raises(MissingDependencyError, match=r"pip install 'photonlite\[video\]'"):
        open_source(tmp_path / "clip.mp4")

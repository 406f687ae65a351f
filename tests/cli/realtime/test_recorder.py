from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from photonlite.cli.realtime import recorder
from photonlite.cli.realtime.recorder import FrameRecorder, durations_ms
from photonlite.errors import InputError
from photonlite.realtime import FrameResult
from photonlite.results import Caption, Detections
from photonlite.video.reader import video_frames, video_info

BOX = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75, "label": "mug", "score": 0.5}


def answered(arrived: float, result: Any = None, size: tuple[int, int] = (160, 120)) -> FrameResult:
    image = Image.new("RGB", size, (int(100 * arrived), 0, 0))
    result = result or Detections([BOX], picture_size=size)
    return FrameResult(result, 0, None, "detect", {}, image, arrived, 0.1, 0.1, met_deadline=True)


def test_a_folder_is_refused_before_frames_are_answered(tmp_path: Path) -> None:
    (tmp_path / "found.gif").mkdir()

    with pytest.raises(InputError, match=r"found\.gif is a folder: name a file in it"):
        FrameRecorder(str(tmp_path / "found.gif"))


def test_frames_are_shown_until_the_next_one() -> None:
    assert durations_ms([10.0, 10.1, 10.35, 10.351]) == [100, 250, 20, 20]
    assert durations_ms([10.0]) == [100]


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_an_animation_shows_results_at_the_rate_of_the_frames(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "deep" / f"found.{suffix}"
    recording = FrameRecorder(str(path))
    for arrived in (0.0, 0.2, 0.5):
        recording.add(answered(arrived))
    recording.save()

    with Image.open(path) as file:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(file)]
    assert len(frames) == 3
    box_side = np.asarray(frames[1])[60, 36:44].astype(int)
    assert np.ptp(box_side, axis=0).max() > 60, "the left side of the box, across which colours change"


def test_frames_with_texts_of_different_length_get_one_size(tmp_path: Path) -> None:
    path = tmp_path / "told.webp"
    recording = FrameRecorder(str(path))
    recording.add(answered(0, Caption("A mug.")))
    recording.add(answered(1, Caption("A mug on a desk beside two bananas and a clock. " * 3)))
    recording.save()

    with Image.open(path) as file:
        assert file.n_frames == 2  # type: ignore[attr-defined]
        assert file.height > 120


@pytest.mark.parametrize("suffix", ["avi", "mp4"])
def test_frames_of_a_video_are_shown_as_long_as_they_were_the_newest(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"found.{suffix}"
    recording = FrameRecorder(str(path))
    for arrived in (0.0, 0.5):
        recording.add(answered(arrived, size=(161, 121)))
    recording.save()

    first, *_, last = (frame.time_s for frame in video_frames(path))
    assert last - first == pytest.approx(1 - 1 / 30, abs=0.02)
    assert video_info(path).size == (160, 120)


def test_frames_beyond_the_memory_limit_are_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recorder, "MOST_BYTES", 2 * 3 * 160 * 120)
    recording = FrameRecorder(str(tmp_path / "found.gif"))
    for arrived in (0.0, 0.1, 0.2):
        recording.add(answered(arrived))
    recording.save()

    assert "without the last 1" in capsys.readouterr().err


def test_without_results_no_file_is_written(tmp_path: Path) -> None:
    FrameRecorder(str(tmp_path / "found.gif")).save()

    assert list(tmp_path.iterdir()) == []

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ImageDecodeError, ImageNotFoundError, InputError, MissingDependencyError, SettingsError
from photonlite.realtime import RealtimeLoop, sources
from photonlite.realtime.sources import Feed, Frames, camera_frames, open_source, paced
from tests.realtime.fake import GUARD, FakeModel

COLORS = ("red", "lime", "blue")


def still(color: str) -> Image.Image:
    return Image.new("RGB", (16, 8), color)


def animation(path: Path, milliseconds: int) -> Path:
    first, *others = map(still, COLORS)
    first.save(path, save_all=True, append_images=others, duration=milliseconds, lossless=True)
    return path


def colors(frames: Iterator[Any]) -> list[tuple[int, ...]]:
    return [frame.getpixel((0, 0)) for frame in frames]


RGB = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_an_animation_plays_frame_by_frame_at_its_own_rate(tmp_path: Path, suffix: str) -> None:
    frames = open_source(animation(tmp_path / f"clip.{suffix}", 40))

    assert frames.rate == 25
    assert colors(frames.play()) == RGB
    assert colors(frames.play()) == RGB
    assert frames.repeatable


def test_a_folder_plays_its_images_by_name_and_animations_inside_it(tmp_path: Path) -> None:
    still("white").save(tmp_path / "b.png")
    animation(tmp_path / "a.webp", 40)
    still("black").save(tmp_path / ".hidden.png")
    (tmp_path / "truth.json").write_text("{}")

    frames = open_source(str(tmp_path))

    assert colors(frames.play()) == [*RGB, (255, 255, 255)]
    assert frames.rate == sources.DEFAULT_RATE


def test_a_folder_of_one_animation_has_its_rate(tmp_path: Path) -> None:
    animation(tmp_path / "clip.webp", 40)

    assert open_source(tmp_path).rate == 25


def test_a_broken_image_among_others_is_left_to_the_loop(tmp_path: Path) -> None:
    still("red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image at all")

    assert list(open_source(tmp_path).play())[1:] == [str(tmp_path / "b.png")]


def test_a_callable_is_asked_until_it_gives_none() -> None:
    waiting = [np.zeros((2, 2, 3)), np.ones((2, 2, 3)), None, np.ones((2, 2, 3))]
    frames = open_source(lambda: waiting.pop(0))

    assert len(list(frames.play())) == 2
    assert not frames.repeatable


def test_an_iterable_gives_its_items_and_a_list_gives_them_again() -> None:
    assert list(open_source([1, 2]).play()) == [1, 2]
    assert open_source([1, 2]).repeatable
    assert not open_source(iter([1, 2])).repeatable


@pytest.mark.parametrize(("source", "number"), [(1, 1), ("0", 0), ("camera:2", 2), ("/dev/video3", 3)])
def test_cameras_have_no_rate(monkeypatch: pytest.MonkeyPatch, source: str | int, number: int) -> None:
    monkeypatch.setattr(sources, "camera_frames", lambda asked: iter([asked]))
    frames = open_source(source)

    assert frames.rate is None
    assert list(frames.play()) == [number]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda folder: folder / "nothing", ImageNotFoundError, "there is no source"),
        (lambda folder: folder, ImageNotFoundError, "holds no image"),
        (lambda folder: 1.5, InputError, "an object of type float is not a source"),
        (lambda folder: b"GIF89a", InputError, "an object of type bytes is not a source"),
        (lambda folder: True, InputError, "an object of type bool is not a source"),
    ],
)
def test_unknown_sources_are_refused(tmp_path: Path, make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_source(make(tmp_path))


def test_broken_files_are_refused_when_opened(tmp_path: Path) -> None:
    (tmp_path / "clip.webp").write_bytes(b"RIFF")

    with pytest.raises(ImageDecodeError, match=r"clip\.webp"):
        open_source(tmp_path / "clip.webp")


class Time:
    """A clock that waiting moves on, and slow sources."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def source(self, *costs: float) -> Iterator[int]:
        for number, cost in enumerate(costs):
            self.now += cost
            yield number


def times(time: Time, frames: Iterator[int], rate: float | None) -> list[float]:
    return [time.now for _ in paced(frames, rate, time.clock, time.wait)]


def test_frames_come_at_the_rate_however_long_each_takes() -> None:
    time = Time()

    assert times(time, time.source(0, 0.05, 0.09, 0, 0.02), 10) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_a_source_that_falls_behind_does_not_catch_up_in_a_burst() -> None:
    time = Time()

    assert times(time, time.source(0, 0.5, 0, 0), 10) == pytest.approx([0, 0.5, 0.6, 0.7])


def test_without_a_rate_frames_are_not_delayed() -> None:
    time = Time()

    assert times(time, time.source(0, 0.5, 0.01), None) == pytest.approx([0, 0.5, 0.51])


@pytest.mark.parametrize("rate", [None, 10.0])
def test_a_stopped_feed_submits_no_more_frames(rate: float | None) -> None:
    time = Time()

    assert len(list(paced(time.source(0, 0, 0), rate, time.clock, lambda seconds: True))) == (0 if rate is None else 1)


@pytest.fixture
def loop() -> Iterator[RealtimeLoop]:
    with RealtimeLoop(FakeModel(lambda image: {"objects": []}), object="mug") as loop:  # type: ignore[arg-type]
        yield loop


def test_a_source_is_played_once(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source(["a", "b", "c"]), rate=1000) as feed:
        feed.join(GUARD)

    assert feed.ended
    assert loop.stats.submitted == 3


def test_a_source_is_repeated_until_it_is_stopped(loop: RealtimeLoop) -> None:
    results = iter(loop)
    with Feed(loop, open_source(["a", "b"]), rate=1000, repeat=True):
        while next(results).number < 5:
            pass

    assert loop.stats.submitted > 5


def test_an_empty_source_is_not_repeated(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source([]), repeat=True) as feed:
        feed.join(GUARD)

    assert feed.ended


def test_a_feed_ends_after_its_duration(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source(["a"]), rate=1000, duration_s=0.01, repeat=True) as feed:
        feed.join(GUARD)

    assert feed.ended


def test_errors_of_a_source_are_raised_by_join(loop: RealtimeLoop) -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise OSError("unplugged")

    with Feed(loop, Frames(broken, None, repeatable=False)) as feed, pytest.raises(OSError, match="unplugged"):
        feed.join(GUARD)


def test_a_feed_ends_when_its_loop_is_closed(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source(["a"]), rate=1000, repeat=True) as feed:
        next(iter(loop))
        loop.close()
        feed.join(GUARD)

    assert feed.ended


@pytest.mark.parametrize("limits", [{"rate": 0}, {"rate": float("inf")}, {"duration_s": -1}])
def test_impossible_limits_are_refused(loop: RealtimeLoop, limits: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        Feed(loop, open_source(["a"]), **limits)


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

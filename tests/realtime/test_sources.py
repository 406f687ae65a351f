import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import (
    ImageDecodeError,
    ImageNotFoundError,
    ImageTooLargeError,
    InputError,
    MissingDependencyError,
    SettingsError,
)
from photonlite.images.decode import load_image
from photonlite.realtime import RealtimeLoop, sources
from photonlite.realtime.sources import Feed, Frames, open_source, paced
from tests.realtime.fake import GUARD, FakeModel
from tests.video.clips import make_clip, reds

COLORS = ("red", "lime", "blue")


def still(color: str) -> Image.Image:
    return Image.new("RGB", (16, 8), color)


def animation(path: Path, milliseconds: int | list[int]) -> Path:
    first, *others = map(still, COLORS)
    first.save(path, save_all=True, append_images=others, duration=milliseconds, lossless=True)
    return path


def colors(frames: Iterator[Any]) -> list[tuple[int, ...]]:
    return [frame.getpixel((0, 0)) for frame in frames]


RGB = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.mark.parametrize("suffix", ["avif", "gif", "png", "webp"])
def test_an_animation_plays_frame_by_frame_at_its_own_rate(tmp_path: Path, suffix: str) -> None:
    frames = open_source(animation(tmp_path / f"clip.{suffix}", 40))

    assert frames.rate == 25
    for _ in range(2):
        assert np.allclose(colors(frames.play()), RGB, atol=4)
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

    _, broken = open_source(tmp_path).play()
    with pytest.raises(ImageDecodeError, match=r"b\.png' is in no supported image format"):
        load_image(broken)


def test_deep_images_are_scaled_and_photos_turned_as_those_that_are_loaded(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 16), 0x8000, np.uint16)).save(tmp_path / "a.png")
    still("red").save(
        tmp_path / "b.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    )
    deep, photo = open_source(tmp_path).play()

    assert deep.getpixel((0, 0)) == (128, 128, 128)
    assert photo.size == (8, 16)


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_frames_of_an_animation_have_their_own_durations(tmp_path: Path, suffix: str) -> None:
    frames = open_source(animation(tmp_path / f"clip.{suffix}", [100, 1000, 40]))

    assert [frame.info["duration"] for frame in frames.play()] == [100, 1000, 40]


def test_an_animation_that_was_cut_off_costs_one_frame_and_not_the_folder(tmp_path: Path) -> None:
    noise = [Image.effect_noise((64, 48), 90) for _ in range(4)]
    path = tmp_path / "clip.gif"
    noise[0].save(path, save_all=True, append_images=noise[1:], duration=40)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    still("red").save(tmp_path / "later.png")

    first, second, broken, later = open_source(tmp_path).play()
    assert [frame.size for frame in (first, second, later)] == [(64, 48), (64, 48), (16, 8)]
    with pytest.raises(ImageDecodeError, match=r"clip\.gif' ends early, after 2 frames: '.*truncated"):
        load_image(broken)


def test_the_limits_of_images_are_those_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still("red").save(tmp_path / "a.png")
    still("red").save(tmp_path / "b.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own, which a command line cannot raise

    assert colors(open_source(tmp_path).play()) == [RGB[0]] * 2
    monkeypatch.setenv("PHOTONLITE_MAX_PIXELS", "100")
    with pytest.raises(ImageTooLargeError, match=r"b\.png' is 16x8, .*PHOTONLITE_MAX_PIXELS"):
        load_image(list(open_source(tmp_path).play())[1])
    with pytest.raises(ImageTooLargeError, match=r"a\.png' is 16x8"):
        open_source(tmp_path / "a.png")


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


@pytest.mark.parametrize("duration_s", [None, 0.01])
def test_a_feed_ends_while_its_source_waits(loop: RealtimeLoop, duration_s: float | None) -> None:
    lost, ended = threading.Event(), threading.Event()

    def play(wait: Callable[[float], bool]) -> Iterator[str]:
        yield "a"
        lost.set()
        if wait(GUARD):
            ended.set()

    with Feed(loop, Frames(play, None, repeatable=False, waits=True), duration_s=duration_s) as feed:
        if duration_s is None:
            assert lost.wait(GUARD)
            feed.stop()
        feed.join(GUARD)

    assert feed.ended
    assert ended.is_set() or not lost.is_set()


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


def test_a_video_plays_at_its_own_rate_again_and_again(tmp_path: Path) -> None:
    frames = open_source(make_clip(tmp_path / "clip.mp4"))

    assert frames.rate == 20
    assert frames.repeatable
    for _ in range(2):
        assert reds(frames.play()) == list(range(10))


def test_broken_videos_are_refused_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"no video at all")

    with pytest.raises(ImageDecodeError, match="cannot be read as a video"):
        open_source(path)


@pytest.mark.parametrize("url", ["rtsp://camera/1", "RTSP://camera/1", "http://camera/video.mjpg", "udp://@:5000"])
def test_the_address_of_a_stream_is_a_source_without_a_rate(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(sources, "stream_frames", lambda asked: iter([asked]))
    frames = open_source(url)

    assert (frames.rate, frames.repeatable, frames.waits) == (None, False, True)
    assert list(frames.play()) == [url]


def test_without_pyav_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "clip.mp4").touch()

    with pytest.raises(MissingDependencyError, match=r"pip install 'photonlite\[video\]'"):
        open_source(tmp_path / "clip.mp4")

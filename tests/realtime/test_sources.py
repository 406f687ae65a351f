from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ImageDecodeError, ImageNotFoundError, InputError
from photonlite.realtime import sources
from photonlite.realtime.sources import open_source

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

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from photonlite.config import DEFAULT_IMAGE_LIMITS
from photonlite.errors import ImageDecodeError, ImageNotFoundError
from photonlite.images.decode import load_image
from photonlite.images.files import UnreadableImage, folder_images, image_frames, is_image_file

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def picture(color: str = "red", size: tuple[int, int] = (16, 8)) -> Image.Image:
    return Image.new("RGB", size, color)


def frames(path: Path) -> list[Any]:
    return list(image_frames(path, DEFAULT_IMAGE_LIMITS))


def test_files_are_images_by_their_suffix_or_their_first_bytes(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.jfif", "c.jpe", "d.pgm", "e.dib", "scan", "photo.jpg_large", "f.png~"):
        picture().save(tmp_path / name, "PPM" if name == "d.pgm" else "JPEG")
    for name, data in {"broken.png": b"", "BMW": b"BMW models", "P1 notes": b"P1 of many", "x.heic": HEIC}.items():
        (tmp_path / name).write_bytes(data)
    picture().save(tmp_path / "raw.nef", "TIFF")  # cameras' raw files are TIFF with a thumbnail
    picture().save(tmp_path / "g.tif")
    picture().save(tmp_path / ".hidden.png")

    images, skipped = folder_images(tmp_path)

    assert [path.name for path in images] == [
        *("a.JPG", "b.jfif", "broken.png", "c.jpe", "d.pgm", "e.dib", "f.png~", "g.tif", "photo.jpg_large", "scan")
    ]
    assert skipped == ["BMW", "P1 notes", "raw.nef", "x.heic"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_pipes_sockets_folders_and_dead_links_are_skipped_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.png"))
        picture().save(tmp_path / "a.png")

        images, skipped = folder_images(tmp_path)

    assert [path.name for path in images] == ["a.png"]
    assert skipped == ["folder.png/", "link.png", "pipe.png", "s.png"]


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("P5 of the list")

    with pytest.raises(ImageNotFoundError, match=r"holds no image.*\.png"):
        folder_images(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may read everything")
def test_a_file_that_may_not_be_read_is_an_image_by_its_suffix_alone(tmp_path: Path) -> None:
    for name in ("a.png", "b"):
        picture().save(tmp_path / name, "PNG")
        (tmp_path / name).chmod(0)

    assert (is_image_file(tmp_path / "a.png"), is_image_file(tmp_path / "b")) == (True, False)


@pytest.mark.parametrize("kind", ["MPO", "TIFF"])
def test_further_pictures_of_a_phone_and_pages_are_no_animation(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"photo.{'jpg' if kind == 'MPO' else 'tif'}"
    picture("red").save(path, kind, save_all=True, append_images=[picture("blue")])
    with Image.open(path) as opened:
        assert getattr(opened, "n_frames", 1) == 2

    [frame] = frames(path)
    assert frame.tobytes() == load_image(path).tobytes()


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "avif"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_frames_of_an_animation_are_as_they_were_drawn_and_share_no_memory(
    tmp_path: Path, kind: str, mode: str
) -> None:
    path, colors = tmp_path / f"clip.{kind}", ("red", "lime", "blue")
    first, *others = (picture(color).convert(mode) for color in colors)
    first.save(path, save_all=True, append_images=others, duration=[40, 1000, 40], lossless=True)

    found = frames(path)

    assert np.allclose([frame.getpixel((0, 0)) for frame in found], [(255, 0, 0), (0, 255, 0), (0, 0, 255)], atol=4)
    assert [frame.info["duration"] for frame in found] == [40, 1000, 40]


def test_an_animation_of_one_frame_is_a_picture(tmp_path: Path) -> None:
    picture().save(tmp_path / "a.gif")

    assert [frame.size for frame in frames(tmp_path / "a.gif")] == [(16, 8)]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff", "avif"])
def test_every_orientation_is_turned_upright_as_by_load_image(tmp_path: Path, kind: str, orientation: int) -> None:
    path = tmp_path / f"a.{kind}"
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    picture("red").save(path, exif=exif)

    [frame] = frames(path)
    assert frame.size == ((8, 16) if orientation > 4 else (16, 8))
    assert frame.tobytes() == load_image(path).tobytes()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_exif_block_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    picture().save(path, exif=b"Exif\0\0MM\0*\0\0\xff\xff no directory")

    assert [frame.size for frame in frames(path)] == [(16, 8)]


def test_a_file_of_another_format_reaches_no_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "open", None)
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")

    [found] = frames(tmp_path / "x.png")
    assert isinstance(found, UnreadableImage)
    with pytest.raises(ImageDecodeError, match=r"x\.png' is in no supported image format"):
        load_image(found)  # type: ignore[arg-type]

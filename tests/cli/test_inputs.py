import io
import os
from pathlib import Path

import pytest
from PIL import Image

from photonlite.cli.inputs import check_text, expand, read
from photonlite.config import ImageLimits
from photonlite.errors import ImageDecodeError, ImageNotFoundError, ImageTooLargeError, InputError


class Stdin(io.TextIOWrapper):
    """Standard input that holds given bytes."""

    def __init__(self, data: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_one_file_is_one_image(image: str) -> None:
    assert expand([image]) == ([image], False)


def test_two_files_are_several_in_the_order_given(folder: Path) -> None:
    names = [str(folder / "b.jpg"), str(folder / "a.png")]

    assert expand(names) == (names, True)


def test_a_folder_gives_its_own_images_sorted(folder: Path) -> None:
    assert expand([str(folder)]) == ([str(folder / name) for name in ("a.png", "b.jpg", "c.png")], True)


def test_a_glob_gives_its_matches_sorted(folder: Path) -> None:
    assert expand([f"{folder}/*.png"]) == ([str(folder / "a.png"), str(folder / "c.png")], True)
    assert expand([f"{folder}/**/d.*"]) == ([str(folder / "inside" / "d.png")], True)


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "desk[1].png"
    Image.new("RGB", (8, 8)).save(path)

    assert expand([str(path)]) == ([str(path)], False)


def test_a_missing_file_is_kept_and_reported_later(image: str) -> None:
    assert expand(["missing.png", image]) == (["missing.png", image], True)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()

    with pytest.raises(ImageNotFoundError, match=r"holds no image.*\.png"):
        expand([str(tmp_path)])


def test_a_glob_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFoundError, match="no file matches"):
        expand([f"{tmp_path}/*.png"])


def test_read_opens_a_file(image: str) -> None:
    opened = read(image, ImageLimits())

    assert (opened.mode, opened.size) == ("RGB", (64, 48))


def test_read_reads_a_dash_from_stdin(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(Path(image).read_bytes()))

    assert read("-", ImageLimits()).size == (64, 48)


def test_read_reads_a_pipe(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(Path(image).read_bytes())
    with os.fdopen(read_end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert read("-", ImageLimits()).size == (64, 48)


@pytest.mark.parametrize(
    ("data", "limits", "error"),
    [
        (b"", ImageLimits(), ImageDecodeError),
        (bytes(2000), ImageLimits(max_bytes=1000), ImageTooLargeError),
    ],
)
def test_stdin_is_checked_as_files_are(
    data: bytes, limits: ImageLimits, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(data))

    with pytest.raises(error):
        read("-", limits)


def test_a_terminal_as_stdin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"", terminal=True))

    with pytest.raises(InputError, match="stdin, which is a terminal"):
        read("-", ImageLimits())


def test_an_image_in_place_of_the_text_is_refused(image: str) -> None:
    with pytest.raises(InputError, match=r"desk\.png' is an image"):
        check_text(image, "detect")


def test_text_may_be_the_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mug").touch()

    check_text("mug", "detect")
    check_text("a sign that says a.png", "detect")
    check_text(None, "caption")

import base64
import io
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from photonlite.cli import inputs
from photonlite.cli.inputs import check_text, expand, read, read_form, short_name
from photonlite.cli.parser import parse
from photonlite.config import DEFAULT_IMAGE_LIMITS, ImageLimits
from photonlite.errors import ImageDecodeError, ImageNotFoundError, ImageTooLargeError, ImageUrlError, InputError
from photonlite.images.decode import load_image


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


def opened(name: str, limits: ImageLimits = DEFAULT_IMAGE_LIMITS, *, allow_urls: bool = False) -> Image.Image:
    return load_image(read(name, limits, allow_urls=allow_urls), limits)


def test_read_opens_a_file(image: str) -> None:
    found = opened(image)

    assert (found.mode, found.size) == ("RGB", (64, 48))


def test_read_reads_a_dash_from_stdin(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(Path(image).read_bytes()))

    assert opened("-").size == (64, 48)


def test_read_reads_a_pipe(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(Path(image).read_bytes())
    with os.fdopen(read_end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert opened("-").size == (64, 48)


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
        opened("-", limits)


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


def read_arguments(*arguments: str) -> dict[str, Any]:
    return read_form(parse(["query", "desk.png", "What is it?", *arguments]))


def test_without_a_form_the_answer_is_plain_text() -> None:
    assert read_arguments() == {}


def test_retries_belong_to_the_form(tmp_path: Path) -> None:
    assert read_arguments("--regex", "a+", "--retries", "2") == {"regex": "a+", "retries": 2}
    assert read_arguments("--retries", "1") == {"retries": 1}


def test_urls_and_data_uris_are_neither_folders_nor_patterns() -> None:
    uri, url = "data:image/png;base64," + "A" * 5000, "https://a.example/[a]?b=*"
    assert expand([uri]) == ([uri], False)
    assert expand([url]) == ([url], False)
    assert (short_name(uri), short_name(url)) == ("data-uri", url)


def test_a_data_uri_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 3), "navy").save(path)
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    assert opened(uri).tobytes() == opened(str(path)).tobytes()


def test_a_url_is_fetched_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 3), "navy").save(path)
    asked = []

    def fetch(url: str, max_bytes: int) -> bytes:
        asked.append((url, max_bytes))
        return path.read_bytes()

    monkeypatch.setattr(inputs, "fetch_now", fetch)
    url = "https://a.example/a.png"
    with pytest.raises(ImageUrlError, match="--allow-urls"):
        opened(url)
    assert opened(url, ImageLimits(max_bytes=5000), allow_urls=True).size == (4, 3)
    assert asked == [(url, 5000)]


def test_choices_are_separated_by_commas() -> None:
    assert read_arguments("--choices", "yes, no,red apple") == {"choices": ["yes", "no", "red apple"]}


def test_a_pattern_is_passed_unchanged() -> None:
    assert read_arguments("--regex", r"[A-Z]{2}-\d{4}") == {"regex": r"[A-Z]{2}-\d{4}"}


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shelf.json"
    path.write_text('{"type": "object"}', encoding="utf-8")

    assert read_arguments("--schema", str(path)) == {"schema": '{"type": "object"}'}


def test_a_schema_may_be_a_type_of_a_module_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_types_for_forms.py").write_text("class Shelf:\n    count: int\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])

    assert read_arguments("--schema", "my_types_for_forms:Shelf")["schema"].__annotations__.keys() == {"count"}


def test_two_forms_are_refused() -> None:
    with pytest.raises(InputError, match="not allowed with"):
        read_arguments("--regex", "a", "--choices", "a,b")


@pytest.mark.parametrize(
    ("content", "source", "words"),
    [
        (None, "missing.json", "cannot be read .No such file or directory.: check the path"),
        (b"\xff\xfe", "schema.json", "is not text in UTF-8"),
        (b" " * (inputs.MAX_SCHEMA_BYTES + 1), "schema.json", "over 1048576 bytes"),
        (None, "no_module_of_this_name:Shelf", "cannot be imported: ModuleNotFoundError"),
        (None, "json:Shelf", "cannot be imported: AttributeError"),
    ],
)
def test_an_unreadable_schema_is_named_in_the_error(
    content: bytes | None, source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    if content is not None:
        Path(source).write_bytes(content)

    with pytest.raises(InputError, match=words) as caught:
        read_form(Namespace(schema=source, choices=None, regex=None, retries=0))

    assert source in str(caught.value)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless file")
def test_an_endless_schema_file_is_refused() -> None:
    with pytest.raises(InputError, match="over 1048576 bytes"):
        read_form(Namespace(schema="/dev/zero", choices=None, regex=None, retries=0))

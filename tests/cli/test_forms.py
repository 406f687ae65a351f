"""Forms of typed answers on the command line."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from photonlite.cli import inputs
from photonlite.cli.inputs import read_form
from photonlite.cli.parser import parse
from photonlite.errors import InputError


def read(*arguments: str) -> dict[str, Any]:
    return read_form(parse(["query", "desk.png", "What is it?", *arguments]))


def test_without_a_form_the_answer_is_plain_text() -> None:
    assert read() == {}


def test_choices_are_separated_by_commas() -> None:
    assert read("--choices", "yes, no,red apple") == {"choices": ["yes", "no", "red apple"]}


def test_a_pattern_is_passed_unchanged() -> None:
    assert read("--regex", r"[A-Z]{2}-\d{4}") == {"regex": r"[A-Z]{2}-\d{4}"}


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shelf.json"
    path.write_text('{"type": "object"}', encoding="utf-8")

    assert read("--schema", str(path)) == {"schema": '{"type": "object"}'}


def test_a_schema_may_be_a_type_of_a_module_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_types_for_forms.py").write_text("class Shelf:\n    count: int\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])

    assert read("--schema", "my_types_for_forms:Shelf")["schema"].__annotations__.keys() == {"count"}


def test_two_forms_are_refused() -> None:
    with pytest.raises(InputError, match="not allowed with"):
        read("--regex", "a", "--choices", "a,b")


@pytest.mark.parametrize(
    ("content", "source", "words"),
    [
        (None, "missing.json", "cannot be read as text"),
        (b"\xff\xfe", "schema.json", "cannot be read as text"),
        (b" " * (inputs.MAX_SCHEMA_BYTES + 1), "schema.json", "over 1048576 bytes"),
        (None, "no_module_of_this_name:Shelf", "cannot be imported: ModuleNotFoundError"),
        (None, "json:Shelf", "cannot be imported: AttributeError"),
    ],
)
def test_an_unreadable_schema_is_named_in_the_error(
    content: bytes | None, source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(source).write_bytes(content)

    with pytest.raises(InputError, match=words) as caught:
        read_form(Namespace(schema=source, choices=None, regex=None))

    assert source in str(caught.value)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless file")
def test_an_endless_schema_file_is_refused() -> None:
    with pytest.raises(InputError, match="over 1048576 bytes"):
        read_form(Namespace(schema="/dev/zero", choices=None, regex=None))

import os
from pathlib import Path
from typing import Any

import pytest

from photonlite.models import fingerprint as module
from photonlite.models.fingerprint import fingerprint, known_fingerprint
from photonlite.models.loading import ModelFiles


def files(*weights: Path, config: Any = "config") -> ModelFiles:
    anything: Any = None
    return ModelFiles("name", anything, config, Path(), weights, {})


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(module, "_PIECE", 16)
    paths = [tmp_path / name for name in ("one", "two")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100)
    return paths


def test_it_is_the_same_wherever_the_files_lie(weights: list[Path], tmp_path: Path) -> None:
    moved = [path.with_suffix(".moved") for path in weights]
    found = fingerprint(files(*weights), tmp_path / "notes")
    for path, to in zip(weights, moved, strict=True):
        to.write_bytes(path.read_bytes())

    assert fingerprint(files(*moved), tmp_path / "other notes") == found
    assert len(found) == 64


@pytest.mark.parametrize("at", [0, 15, 16, 99])
def test_any_byte_changes_it(weights: list[Path], tmp_path: Path, at: int) -> None:
    before = fingerprint(files(*weights), tmp_path / "notes")
    content = bytearray(weights[1].read_bytes())
    content[at] ^= 1
    weights[1].write_bytes(content)

    assert fingerprint(files(*weights), tmp_path / "notes") != before
    assert fingerprint(files(*weights[::-1]), tmp_path / "notes") != before
    assert fingerprint(files(*weights, config="other"), tmp_path / "notes") != before


def test_what_was_hashed_is_known_until_the_files_change(weights: list[Path], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert known_fingerprint(files(*weights), notes) is None

    found = fingerprint(files(*weights), notes)
    assert known_fingerprint(files(*weights), notes) == found
    assert known_fingerprint(files(weights[0]), notes) is None
    assert known_fingerprint(files(*weights, config="other"), notes) is None
    os.utime(weights[0], (1, 1))
    assert known_fingerprint(files(*weights), notes) is None


def test_a_damaged_note_is_none(weights: list[Path], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    found = fingerprint(files(*weights), notes)
    (note,) = notes.iterdir()
    for damaged in (found[:-1], "x" * 64, ""):
        note.write_text(damaged)
        assert known_fingerprint(files(*weights), notes) is None


def test_without_a_place_for_notes_it_is_computed_each_time(weights: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("a file")

    assert fingerprint(files(*weights), tmp_path / "notes") == fingerprint(files(*weights), tmp_path / "elsewhere")
    assert known_fingerprint(files(*weights), tmp_path / "notes") is None


def test_files_that_are_gone_raise(weights: list[Path], tmp_path: Path) -> None:
    weights[1].unlink()
    with pytest.raises(OSError, match="two"):
        fingerprint(files(*weights), tmp_path / "notes")
    assert known_fingerprint(files(*weights), tmp_path / "notes") is None

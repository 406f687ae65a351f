"""`verify`: agreement is found where there is some, and a wrong model is told from a right one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import photonlite
from photonlite.api import VisionModel
from photonlite.errors import ModelNotFoundError
from photonlite.models.qwen import text, vision
from photonlite.verification import Row, built_in_pictures
from tests.models.qwen.tiny import reference_model, save

LENGTH = 800


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model("3"), tmp_path_factory.mktemp("qwen"), "3")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOTONLITE_MAX_CONTEXT", str(LENGTH))


def rows_of(model: Path | None) -> list[Row]:
    return list(photonlite.verify(model, device="cpu", dtype="float32"))


def test_a_right_checkpoint_agrees_in_everything(folder: Path) -> None:
    rows = rows_of(folder)

    assert [row.check for row in rows] == [
        "13 answers, pipelined",
        "preprocessing of 3 pictures",
        "features of pictures",
        "logits of 120 tokens",
        "greedy tokens of 6 answers",
    ]
    assert all(row.passed for row in rows)
    assert all(row.against.startswith("transformers ") for row in rows[1:])


def test_half_precision_has_wider_limits(folder: Path) -> None:
    rows = list(photonlite.verify(folder, device="cpu", dtype="bfloat16"))

    assert all(row.passed for row in rows), rows


def test_a_family_without_another_implementation_is_compared_with_itself() -> None:
    (row,) = rows_of(None)

    assert (row.against, row.difference, row.passed) == ("one step at a time", "none", True)


def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "rotary_axes", lambda config: [0, 1, 2] * 2 + [0] * (sum(config.sections) - 6))
    text.axes_on.cache_clear()


def unturned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "_rotary_angles", lambda *given: 0 * ROTARY_ANGLES(*given))


ROTARY_ANGLES = vision._rotary_angles


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (turned, {"logits of 120 tokens"}),
        (unturned, {"features of pictures", "logits of 120 tokens"}),
    ],
)
def test_a_wrong_model_is_found_where_it_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None], found: set[str]
) -> None:
    spoil(monkeypatch)
    try:
        failed = {row.check for row in rows_of(folder) if not row.passed}
    finally:
        text.axes_on.cache_clear()

    assert found <= failed
    assert not failed & {"13 answers, pipelined", "preprocessing of 3 pictures"}


def test_an_engine_that_changes_answers_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = VisionModel.caption

    def spoiled(model: VisionModel, *given: Any, **options: Any) -> Any:
        found = answered(model, *given, **options)
        return {"caption": found["caption"] + "?"} if model.max_batch == 1 else found

    monkeypatch.setattr(VisionModel, "caption", spoiled)
    (row,) = [row for row in rows_of(folder) if not row.passed]

    assert (row.check, row.difference) == ("13 answers, pipelined", "in caption 0, caption 1, caption 2")


def test_a_model_that_is_not_there_is_refused_as_by_load(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        rows_of(tmp_path / "nothing")


def test_the_built_in_pictures_are_the_same_everywhere() -> None:
    pictures = built_in_pictures()

    assert [picture.size for picture in pictures] == [(640, 480), (333, 500), (97, 31)]
    assert all(len(set(picture.resize((9, 9)).tobytes())) > 20 for picture in pictures)

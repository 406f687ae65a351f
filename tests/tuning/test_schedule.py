import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from photonlite.errors import SettingsError, TuningError
from photonlite.tuning.drawing import COLORS, draw_schedules
from photonlite.tuning.interference import Point, Table
from photonlite.tuning.problem import Operation
from photonlite.tuning.schedule import Schedule, Slot, Tuning, load_tuning, save_tuning

MADE_FOR = {"card": "NVIDIA H200", "sms": "132", "model": "Moondream 2", "torch": "2.11.0"}
OPERATIONS = (
    Operation("encode", "compute", 9, {9: 0.012}),
    Operation("decode", "memory", 6, {2: 0.004, 4: 0.008, 6: 0.012}, serial=True),
)
PIECES = (
    Slot("decode", 0, 4, 0.5, 0.0, 0.012),
    Slot("encode", 0, 9, 0.5, 0.0, 0.02),
    Slot("decode", 4, 6, 1.0, 0.02, 0.024),
)
TUNING = Tuning(
    MADE_FOR, Table((Point(0.5, 0.66, 0.6, 0.7, 64),)), {"32 streams": Schedule(OPERATIONS, PIECES)}
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tuning" / "one.json"
    save_tuning(path, TUNING)
    return path


def changed(file: Path, change: Any) -> Path:
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))
    return file


def wait_in_a_cycle(operations: Any) -> None:
    operations[0]["after"], operations[1]["after"] = ["decode"], ["encode"]


def schedule_of(raw: dict[str, Any]) -> Any:
    return raw["schedules"]["32 streams"]


def test_a_tuning_is_read_as_it_was_written(file: Path) -> None:
    assert load_tuning(file, MADE_FOR) == TUNING
    assert load_tuning(file) == TUNING
    assert [path.name for path in file.parent.iterdir()] == ["one.json"]


@pytest.mark.parametrize(("name", "value"), [("card", "NVIDIA A100"), ("model", "another"), ("torch", "2.13.0")])
def test_a_file_of_another_card_model_or_version_is_refused(file: Path, name: str, value: str) -> None:
    with pytest.raises(TuningError, match=f"one.json.*made for {name} '{MADE_FOR[name]}', this is '{value}'"):
        load_tuning(file, {**MADE_FOR, name: value})


def test_a_file_without_something_that_counts_is_refused(file: Path) -> None:
    with pytest.raises(TuningError, match="made for driver 'unknown', this is '580'"):
        load_tuning(file, {**MADE_FOR, "driver": "580"})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\xff", '{"format": 1, "made_for": 3}'])
def test_damaged_files_are_refused(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(TuningError, match=r"one\.json is damaged"):
        load_tuning(file)


def test_a_missing_file_and_one_of_another_format_are_refused(file: Path) -> None:
    with pytest.raises(TuningError, match="there is no tuning file"):
        load_tuning(file.parent / "none.json")
    with pytest.raises(TuningError, match="format 2 is not 1"):
        load_tuning(changed(file, lambda raw: raw.update(format=2)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: one["pieces"][0].update(share=0.6), r"shares sum to 1\.100 after 0\.000 ms"),
        (lambda one: one["pieces"][2].update(starts_s=0.015), r"shares sum to 1\.500 after 15\.000 ms"),
        (lambda one: one["pieces"].pop(1), "'encode' cover 0 positions of 9"),
        (lambda one: one["pieces"].pop(0), "'decode' leave out or repeat position 0"),
        (lambda one: one["pieces"][0].update(end=5), "'decode' leave out or repeat position 4"),
        (lambda one: one["pieces"][2].update(end=5), "'decode' cover 5 positions of 6"),
        (lambda one: one["pieces"][0].update(operation="prefill"), "'prefill', which is no operation"),
        (lambda one: one["pieces"][2].update(starts_s=0.0, ends_s=0.004), "decode 4:6 starts before decode 0:4"),
        (lambda one: one["operations"][0].update(after=["decode"]), "encode 0:9 starts before decode"),
        (lambda one: one["operations"][0].update(resource="memory"), "two pieces of one resource"),
        (lambda one: one["operations"][0].update(resource="disk"), "'disk' is none of"),
        (lambda one: one["pieces"][0].update(share=0), r"share must be in \(0, 1\]"),
        (lambda one: one["pieces"][0].update(ends_s=-1.0), "times must ascend"),
        (lambda one: one["pieces"][0].update(when=3), "damaged: TypeError"),
        (lambda one: wait_in_a_cycle(one["operations"]), "in a cycle: decode, encode"),
        (lambda one: one["operations"][0].update(seconds={}), "'encode' needs a batch of at least 1"),
        (lambda one: one["operations"][0].update(seconds={"9": float("nan")}), "'encode' needs a batch"),
    ],
)
def test_impossible_schedules_are_refused_with_the_reason(file: Path, change: Any, complaint: str) -> None:
    changed(file, lambda raw: change(schedule_of(raw)))

    with pytest.raises(TuningError, match=complaint):
        load_tuning(file, MADE_FOR)


def test_pieces_that_touch_do_not_meet() -> None:
    late = (*PIECES[:2], Slot("decode", 4, 6, 1.0, 0.02 - 1e-9, 0.024))

    assert Schedule(OPERATIONS, late).makespan == 0.024


def test_a_drawing_shows_each_piece_in_its_colour(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.png"

    draw_schedules(TUNING.schedules, path)

    with Image.open(path) as image:
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}  # type: ignore[union-attr]
    assert {COLORS["compute"], COLORS["memory"]} <= colors
    assert COLORS["network"] not in colors


def test_a_drawing_in_no_image_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'\.txt' is not an image format"):
        draw_schedules(TUNING.schedules, tmp_path / "plan.txt")

"""`bench.quantised`: its tables, from answers and models that are small."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.nano.evaluation.records import PlaceRecord, SceneRecord
from bench.quantised import __main__ as command
from bench.quantised import answers
from bench.quantised.answers import CHOICES, FULL, Choice, write_answers
from bench.quantised.logits import VARIANTS, Variant, compare_logits, time_steps
from bench.quantised.models import bytes_of_release, full_model, quantised_copy
from bench.quantised.products import time_products
from photonlite.models.precisions import Precisions

F32, BF16 = torch.float32, torch.bfloat16


def test_quantised_moondream_2_fits_the_memory_that_is_promised() -> None:
    assert bytes_of_release(Precisions("int4"), BF16) < 2.1e9
    assert bytes_of_release(Precisions("int4", "int8"), BF16) < 1.6e9
    assert 3.8e9 < bytes_of_release(Precisions(), BF16) < 3.9e9


def test_a_copy_has_the_numbers_of_its_model_and_layers_of_its_own() -> None:
    model = full_model(2, tiny=True)
    made = quantised_copy(model, Precisions("int8"), F32)

    assert torch.equal(made.text.wte, model.text.wte)
    assert made.text.wte is not model.text.wte
    matrix = model.text.blocks[1].mlp.fc1.weight
    assert 0 < float((made.text.blocks[1].mlp.fc1.weight - matrix).abs().max()) < 0.01 * float(matrix.abs().max())
    assert isinstance(model.text.blocks[1].mlp.fc1, torch.nn.Linear)


def test_logits_and_steps_are_tables() -> None:
    model = full_model(2, tiny=True)
    rows = compare_logits(model, 8, (Variant(Precisions(), F32), Variant(Precisions("int4"), F32))).splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]

    assert cells[0] == ["float32", "0.00e+00", "100.0%", "0.000"]
    assert cells[1][0] == "int4, else float32"
    assert float(cells[1][1]) > 0
    steps = time_steps(model, 1, VARIANTS[:3]).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in steps] == ["float32", "bfloat16", "int8, else float32"]


def test_products_are_a_table_of_shapes_and_rows() -> None:
    rows = time_products(1, ((64, 64), (128, 64)), (1, 5)).splitlines()[2:]

    assert [[cell.strip() for cell in row.split("|")[1:3]] for row in rows] == [
        ["64 x 64", "1"],
        ["64 x 64", "5"],
        ["128 x 64", "1"],
        ["128 x 64", "5"],
    ]
    assert all(float(cell) > 0 for row in rows for cell in row.split("|")[3:-1])


BOX, OTHER = (0.1, 0.1, 0.3, 0.3), (0.6, 0.6, 0.9, 0.9)


def scene(*boxes: tuple[float, ...]) -> SceneRecord:
    question = PlaceRecord(0, "name", "a cup", [BOX, OTHER], [*boxes], [0.9] * len(boxes))
    return SceneRecord(1, "plain", 100, 100, detections=[question], objects=2)


def test_answers_are_compared_with_those_of_full_precision() -> None:
    full = [scene(BOX, OTHER), scene(BOX, OTHER)]
    text = write_answers({FULL: full, CHOICES[1]: full, CHOICES[3]: [scene(BOX), scene(BOX, OTHER)]})

    assert "2 scenes, 4 boxes" in text
    cells = {
        row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in text.splitlines()[2:5]
    }
    assert cells["detect, F1 at IoU 0.5"] == ["1.0000", "1.0000 (+0.0000)", "0.8571 (-0.1429)"]
    assert "- int8: F1 0.00 points lower, aim at most 0.1." in text
    assert "- int4: F1 14.29 points lower, aim at most 1.0." in text
    assert [cell.strip() for cell in text.splitlines()[5].split("|")[2:-1]] == ["100.0%", "100.0%", "50.0%"]


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Choice, int, int]] = []

    def ask(choice: Choice, count: int, first: int, *given: object) -> list[SceneRecord]:
        assert given == ("cpu", 0, ["detect"])
        if len(asked) == 7:
            raise KeyboardInterrupt
        asked.append((choice, first, count))
        return [replace(scene(BOX), seed=seed) for seed in range(first, first + count)]

    monkeypatch.setattr(answers, "ask", ask)
    arguments = ["--only", "answers", "--scenes", "4", "--part", "3", "--seed", "9", "--skills", "detect"]
    arguments += ["--date", "2026-01-02", "--records", str(tmp_path / "records"), "--output", str(tmp_path / "page.md")]
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    assert "| 3 scenes, 6 boxes" in (tmp_path / "page.md").read_text()
    first, asked[:] = asked[:], []
    command.main(arguments)

    page = (tmp_path / "page.md").read_text()
    assert first + asked == [*((choice, 9, 3) for choice in CHOICES), *((choice, 12, 1) for choice in CHOICES)]
    assert "| 4 scenes, 8 boxes" in page
    assert "int4, encoder int8" in page
    assert "2026-01-02" in page

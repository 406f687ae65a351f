from pathlib import Path

import pytest

from bench.kv_fp8 import __main__ as command
from bench.kv_fp8.answers import Agreement, Comparison
from bench.kv_fp8.rounding import LayerFigures, LogitFigures, Rounding


def figures(f1: float) -> dict[str, dict[str, float]]:
    return {
        "detect": {"f1": f1, "mean_iou": 0.9, "count_exact": 0.9, "score_auc": 0.9, "boxes": 7},
        "absent": {"all_none": 1.0},
        "point": {"inside": 1.0, "found": 1.0, "count_exact": 1.0},
        "caption": {"kind_precision": 1.0, "whole_caption": 0.5},
        "query": {"count": 1.0, "existence": 1.0},
    }


def test_the_page_holds_answers_and_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compare(*arguments: object) -> Comparison:
        asked.append(arguments)
        return Comparison(figures(0.95), figures(0.945), {"detect": Agreement(200, 199, 180)}, (3, 1))

    layer = LayerFigures(Rounding(1.0, 1.5, 0.5, 20, 0.026), Rounding(2.0, 2.5, 1.0, 30, 0.027), 0.031)
    monkeypatch.setattr(command, "compare_answers", compare)
    monkeypatch.setattr(command, "shipped_layers", lambda device, seed: [layer])
    path = tmp_path / "kv.md"

    command.main(["--scenes", "5", "--seed", "9", "--date", "2026-01-02", "--output", str(path)])

    page = path.read_text()
    assert asked == [(5, 9, "cpu", 0)]
    for part in ("2026-01-02", "-0.005", "99.5%", "90.0%", "only without FP8: 3; only with FP8: 1", "2.60%", "3.10%"):
        assert part in page
    assert "random weights: logits" not in page


def test_without_scenes_no_questions_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "shipped_layers", lambda device, seed: [])
    command.main(["--scenes", "0", "--output", str(tmp_path / "kv.md")])
    assert "Answers" not in (tmp_path / "kv.md").read_text()


def test_logits_are_a_table_of_runs() -> None:
    text = command.write_logits({"bfloat16, KV in FP8": LogitFigures(0.0123, 0.975, 0.2, 0.01)})
    assert [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]] == [
        "bfloat16, KV in FP8",
        "0.0123",
        "97.5%",
        "0.2000",
        "0.0100",
    ]

import json
import subprocess
import sys

import pytest

from bench.nano.training import sweep
from bench.nano.training.config import Shape
from bench.nano.training.loss import Weights
from bench.nano.training.train import arguments, changed


def write_log(folder, f1, losses=(3.0, 2.0, 1.0, 1.2, 1.4)):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"step": 100 * i, "scenes": 1000 * i, "decision": loss} for i, loss in enumerate(losses)]
    lines.append({"step": 600, "scenes": 6000, "f1": f1, "iou": 0.5, "none": 1.0})
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_every_run_can_be_trained():
    parser = arguments()
    for name, changes in sweep.VARIANTS.items():
        options = parser.parse_args(["--minutes", "1", "--out", "x", *changes])
        base = parser.parse_args(["--minutes", "1", "--out", "x"])
        assert (vars(options) != vars(base)) == (name != "base")
        changed(Shape(), options.shape)
        changed(Weights(), options.weights)


def test_a_run_is_read_from_its_log(tmp_path):
    write_log(tmp_path, 0.25)
    result = sweep.read(tmp_path)
    assert result["f1"] == 0.25
    assert result["scenes"] == 6000
    assert result["decision"] == pytest.approx((1.0 + 1.2 + 1.4) / 3)


def test_a_run_that_was_never_judged_says_where_to_look(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 100, "decision": 1.0}\n')
    with pytest.raises(ValueError, match=r"output\.txt"):
        sweep.read(tmp_path)


def test_the_best_run_stands_first():
    rows = sweep.table({"a": {"f1": 0.1, "scenes": 10}, "b": {"f1": 0.9, "scenes": 1234, "iou": 0.5}}).splitlines()
    assert rows[2].startswith("| b | 1,234 | 0.900 | 0.500 |")
    assert rows[3].startswith("| a | 10 | 0.100 |")


def test_runs_share_cards_and_one_that_fails_is_left_out(tmp_path, monkeypatch, capsys):
    started = []

    def popen(command, env, **_):
        folder = command[command.index("--out") + 1]
        started.append((env["CUDA_VISIBLE_DEVICES"], command[command.index("--turn") + 1]))
        fails = "--rate" in command
        if not fails:
            write_log(sweep.Path(folder), 0.5)
        return subprocess_of(fails)

    def subprocess_of(fails):
        return real([sys.executable, "-c", f"raise SystemExit({int(fails)})"])

    real = subprocess.Popen
    monkeypatch.setattr(sweep.subprocess, "Popen", popen)
    sweep.main(["--out", str(tmp_path), "--cards", "2", "--runs", "base", "rate 4e-3", "batch 96"])
    assert [card for card, _ in started] == ["0", "1", "0"]
    assert started[0][1] == started[2][1] != started[1][1]
    printed = capsys.readouterr()
    assert "rate 4e-3: exit 1" in printed.err
    assert "| batch 96 | 6,000 | 0.500 |" in (tmp_path / "sweep.md").read_text()

import json

import pytest
from PIL import Image

from bench.nano.training import curves


def losses(step, typed):
    return {"step": step, "minutes": step / 800, "scenes": 96 * step, "typed": typed, "coord": 2.5}


def judged(step):
    return {"step": step, "minutes": step / 800, "scenes": 96 * step, "f1": 0.9, "f1_10": 1, "f1_25": 0.9, "f1_50": 0.8}


@pytest.fixture
def run(tmp_path):
    lines = [losses(100, 1.0), losses(200, 0.5), judged(250), losses(300, 0.4), losses(400, 0.2), losses(500, 9.0)]
    log = "".join(json.dumps(line) + "\n" for line in [*lines, judged(500), judged(500)])
    (tmp_path / "log.jsonl").write_text(log)
    return tmp_path


def test_losses_are_averaged_and_f1_is_kept_once(run):
    kept = list(curves.condense(curves.read_log(run / "log.jsonl"), 2))

    assert kept == [losses(200, 0.75), judged(250), losses(400, 0.3), judged(500)]


def test_the_command_writes_the_log_and_draws_it(run, tmp_path):
    curves.main([str(run), "--every", "2", "--out", str(tmp_path)])

    assert len((tmp_path / "nano-training.jsonl").read_text().splitlines()) == 4
    with Image.open(tmp_path / "nano-training.png") as plot:
        assert min(plot.size) > 100

"""The command: what it loads and asks, and what it writes."""

import json
import os
from concurrent.futures.process import BrokenProcessPool

import pytest

from bench.nano.evaluation import evaluate
from bench.nano.evaluation.evaluate import collect, main, write_report
from bench.nano.evaluation.figures.summary import summarize
from tests.nano.evaluation.oracle import SEEDS, Oracle, judged, scenes, sprites


def test_report_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "find_sprites", sprites)
    # The page draws its scenes anew from their seeds.
    by_seed = dict(zip(SEEDS, scenes(), strict=True))
    monkeypatch.setattr(evaluate, "make_scene", lambda seed, *_: by_seed[seed])
    records = judged(Oracle(boxes=lambda boxes: boxes[1:]), ["detect"])
    write_report(tmp_path, records, summarize(records))
    assert json.loads((tmp_path / "figures.json").read_text())["scenes"] == len(records)
    assert len(json.loads((tmp_path / "records.json").read_text())) == len(records)
    assert "detect: " in (tmp_path / "failures.html").read_text(encoding="utf-8")
    assert list((tmp_path / "failures").iterdir())


def load(monkeypatch):
    """Stand in for the public model: blind, and notes how it was loaded."""
    loaded = []

    class Blind:
        def encode_image(self, image):
            return image

        def batch(self, tasks, *, errors):
            return [{"objects": []} for _ in tasks]

    monkeypatch.setattr(
        evaluate.photonlite, "load", lambda model, **options: loaded.append((model, options)) or Blind()
    )
    monkeypatch.setattr(evaluate, "find_sprites", sprites)
    return loaded


@pytest.mark.long
def test_command_line_examines_the_public_model(tmp_path, monkeypatch, capsys):
    loaded = load(monkeypatch)
    asked = ["--model", "some/folder", "--scenes", "3", "--skills", "detect", "--kv-dtype", "fp8"]
    main([*asked, "--out", str(tmp_path)])
    engine = {"kv_dtype": "fp8", "kv_cache_bytes": None, "grammar_limit_s": 60.0}
    kinds = dict.fromkeys(("dtype", "weights", "vision_weights"), "auto")
    assert loaded == [("some/folder", {"device": "cpu", "engine": engine} | kinds)]
    assert "3 scenes" in capsys.readouterr().out
    assert json.loads((tmp_path / "figures.json").read_text())["detect"]["recall"] == 0


def test_command_line_asks_about_2000_scenes_and_shares_a_card(monkeypatch):
    jobs = []
    monkeypatch.setattr(evaluate, "evaluate", lambda job, scenes, seed, workers: jobs.append((job, scenes)) or [])
    monkeypatch.setattr(evaluate, "summarize", lambda records: {"scenes": 0, "headline": []})
    main(["--device", "cuda", "--workers", "4"])
    main(["--device", "cuda"])
    main(["--workers", "4"])
    assert [scenes for _, scenes in jobs] == [2000] * 3
    assert [job.kv_cache_bytes for job, _ in jobs] == [evaluate.SHARED_CACHE_BYTES, None, None]


def test_records_come_in_the_order_of_the_seeds(monkeypatch):
    monkeypatch.setattr(evaluate.photonlite, "load", lambda *_, **__: None)
    monkeypatch.setattr(evaluate, "find_sprites", sprites)
    monkeypatch.setattr(evaluate, "examine", lambda _model, _scene, seed, _skills: seed)
    assert list(collect(evaluate.Job(None, "cpu", "auto", ("detect",)), [5, 3, 4], workers=0)) == [5, 3, 4]


class Deadly(int):
    """A seed that ends the process which reads it."""

    def __reduce__(self):
        return os._exit, (1,)


@pytest.mark.long
def test_a_worker_that_is_killed_ends_the_evaluation():
    job = evaluate.Job(None, "cpu", "auto", ("detect",))
    with pytest.raises(BrokenProcessPool):
        list(collect(job, [Deadly(5)], workers=1))

import gzip
import json

import pytest
from PIL import Image

from bench.bubble import __main__ as command
from tests.bubble.small import tiny_subject


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(command, "shipped", lambda device: tiny_subject())
    monkeypatch.setattr(command.torch, "set_num_threads", lambda count: None)


def test_the_command_prints_and_writes_tables_pictures_traces_and_profiles(tiny, tmp_path, capfd):
    page = tmp_path / "deep" / "page.md"
    arguments = [
        "--device",
        "cpu",
        "--streams",
        "2",
        "--rounds",
        "1",
        "--spread",
        "5",
        "--output",
        str(page),
        "--kernels",
    ]
    arguments += ["--timeline", str(tmp_path / "t"), "--trace", str(tmp_path / "t"), "--host-profile"]
    assert command.main(arguments) == 0

    text, printed = page.read_text(), capfd.readouterr().out
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles[:3] == ["Blocking against pipelined", "A step at depth 2, prediction and observation", "Aims"]
    assert "Kernels: forward, 2 streams" in titles
    assert "Engine thread: detect, 2 streams" in titles
    assert "aten::addmm" in text
    assert "engine/core.py" in text
    assert all(title in printed for title in titles)
    assert f"python -m bench.bubble --device cpu --streams 2 --rounds 1 --spread 5 --output {page}" in text
    with Image.open(tmp_path / "t" / "timeline-detect-2.png") as picture:
        assert picture.width == 1600
    with gzip.open(tmp_path / "t" / "trace-text-2-depth2.json.gz") as trace:
        assert {"forward", "finalize"} <= {event["name"] for event in json.load(trace)["traceEvents"]}


def test_what_was_measured_before_an_end_is_written(tiny, tmp_path, monkeypatch):
    def fail(rigs, subject, workload, streams, rounds):
        if workload == "detect":
            raise RuntimeError("the card is gone")
        return measured(rigs, subject, workload, streams, rounds)

    measured = command.compare
    monkeypatch.setattr(command, "compare", fail)
    page = tmp_path / "page.md"
    with pytest.raises(RuntimeError, match="the card is gone"):
        command.main(["--device", "cpu", "--streams", "1", "--rounds", "1", "--output", str(page)])
    assert "| CPU      | text     |       1 |   1.000 |" in page.read_text()


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--streams", "1", "0"], ["--spread", "110"]])
def test_senseless_numbers_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        command.parse(arguments)
    assert "error: " in capsys.readouterr().err

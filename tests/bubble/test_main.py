import gzip
import json

import pytest
import torch
from PIL import Image

from bench.bubble import __main__ as command
from bench.bubble import parts
from tests.bubble.small import tiny_subject


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(parts, "shipped", lambda device: tiny_subject())
    monkeypatch.setattr(command.torch, "set_num_threads", lambda count: None)


@pytest.mark.long
def test_the_command_prints_and_writes_tables_images_traces_and_profiles(tiny, tmp_path, capfd):
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
        "--tokens",
        "12",
        "--output",
        str(page),
    ]
    arguments += ["--timeline", str(tmp_path / "t"), "--trace", str(tmp_path / "t"), "--data", str(tmp_path / "t")]
    arguments += ["--only", "rounds", "host", "kernels", "masks", "short", "whole"]
    assert command.main(arguments) == 0

    text, printed = page.read_text(), capfd.readouterr().out
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles[:2] == ["Blocking against pipelined", "The cost of zombies, prediction and observation"]
    assert {"The published study", "Aims", "Both depths", "The host", "Answers", "How to read this"} <= set(titles)
    assert {"Masks before and after the launch", "Answers of 3 tokens", "A whole run"} <= set(titles)
    assert "Kernels: forward, 2 streams" in titles
    assert "Engine thread: detect, 2 streams" in titles
    assert "aten::addmm" in text
    assert "engine/core.py" in text
    assert all(title in printed for title in titles)
    assert f"python -m bench.bubble --device cpu --streams 2 --rounds 1 --spread 5 --tokens 12 --output {page} " in text
    assert {path.name for path in (tmp_path / "t").glob("*.json")} == {"rounds.json", "whole-run.json"}
    rounds = json.loads((tmp_path / "t" / "rounds.json").read_text())
    assert [(one["workload"], one["streams"], len(one["told"]["walls"])) for one in rounds] == [
        ("text", 2, 1),
        ("detect", 2, 1),
    ]
    with Image.open(tmp_path / "t" / "timeline-detect-2.png") as image:
        assert image.width == 1600
    with gzip.open(tmp_path / "t" / "trace-text-2-depth2.json.gz") as trace:
        assert {"forward", "finalize"} <= {event["name"] for event in json.load(trace)["traceEvents"]}


@pytest.mark.long
def test_what_was_measured_before_an_end_is_written(tiny, tmp_path, monkeypatch):
    def fail(rigs, subject, workload, streams, rounds):
        if workload == "detect":
            raise RuntimeError("the card is gone")
        return measured(rigs, subject, workload, streams, rounds)

    measured = parts.compare
    monkeypatch.setattr(parts, "compare", fail)
    page = tmp_path / "page.md"
    arguments = ["--device", "cpu", "--streams", "1", "--rounds", "1", "--spread", "5", "--output", str(page)]
    assert command.main([*arguments, "--only", "rounds", "kernels"]) == 1

    text = page.read_text()
    assert "| CPU      | text     |       1 |   1.000 |" in text
    assert "- rounds: RuntimeError: the card is gone" in text
    assert "## Kernels: forward, 1 stream" in text


@pytest.mark.parametrize("part", ["graphs", "padding", "pools"])
def test_parts_that_need_graphs_are_refused_on_a_cpu(part, capsys):
    with pytest.raises(SystemExit):
        command.parse(["--device", "cpu", "--only", "rounds", part])
    assert f"{part} need a CUDA card" in capsys.readouterr().err


def test_a_card_runs_all_parts_by_default_and_a_cpu_the_rounds(monkeypatch):
    assert command.parse(["--device", "cpu"]).only == ["rounds"]
    monkeypatch.setattr(command, "resolve_device", lambda name: torch.device("cuda"))
    options = command.parse([])
    assert tuple(options.only) == parts.PARTS
    assert options.streams == [1, 8, 32]


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--streams", "1", "0"], ["--spread", "110"], ["--tokens", "1"]]
)
def test_senseless_numbers_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        command.parse(arguments)
    assert "error: " in capsys.readouterr().err

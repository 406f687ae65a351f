import contextlib
import re

import pytest

from bench.serve import __main__ as command
from bench.serve.server import Baseline, ChildError
from tests.server.live import live

BASELINE = Baseline("a machine", "a model", {"detect": 40.0, "query": 20.0}, {"detect": 0.1, "query": 0.2}, 0.0005)
SHORT = ["--seconds", "0.2", "--times", "3", "--pause", "0", "--size", "64", "48", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(command, "SETTLE_S", 0.1)
    monkeypatch.setattr(command, "SMALL", (64, 48))


def serve_fake(monkeypatch, **settings):
    @contextlib.contextmanager
    def started(options):
        with live(**settings) as server:
            yield BASELINE, server.port

    monkeypatch.setattr(command, "started", started)


def sections(text):
    return {part.partition("\n")[0]: part for part in text.split("## ")[1:]}


@pytest.mark.long
def test_the_report_has_capacity_overhead_and_load(monkeypatch, tmp_path, capsys):
    serve_fake(monkeypatch)
    page = tmp_path / "page.md"
    assert command.main([*SHORT, "--rates", "2", "0.5", "--stream-rates", "1", "--output", str(page)]) == 0
    text = page.read_text()
    found = sections(text)
    assert list(found) == [
        "Capacity",
        "What HTTP adds",
        "Load: detect",
        "Load: streamed answers",
        "Aims",
        "How to read this",
    ]
    assert "| detect, 16 clients" in found["Capacity"]
    assert len(re.findall(r"\| +2 ms (?:reached|MISSED) \|", found["What HTTP adds"])) == 4
    rates = [line.split("|")[1:3] for line in found["Load: detect"].splitlines() if " x " in line]
    assert [[cell.strip() for cell in row] for row in rates] == [["0.50 x", "20.0"], ["2.00 x", "80.0"]]
    assert "1.00 x" in found["Load: streamed answers"]
    assert "Made by `python -m bench.serve --seconds 0.2" in text
    assert text.partition("\n\n")[2].strip() in capsys.readouterr().out


def test_what_is_refused_is_judged(monkeypatch, capsys):
    serve_fake(monkeypatch, requests_per_minute=1)
    assert command.main([*SHORT, "--only", "detect", "--rates", "5"]) == 0
    out = capsys.readouterr().out
    assert "429 within 100 ms" in sections(out)["Aims"]
    assert "Capacity" in sections(out)


def test_a_process_that_fails_is_one_line(monkeypatch, capsys):
    def started(options):
        raise ChildError("no card")

    monkeypatch.setattr(command, "started", started)
    assert command.main(SHORT) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "error: no card"


@pytest.mark.parametrize("arguments", [["--rates", "0"], ["--times", "0"], ["--seconds", "-1"], ["--pause", "-1"]])
def test_senseless_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "error: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_rehearsal_goes_through_all_processes(capsys):
    arguments = ["--shape", "tiny", "--clients", "2", "--rates", "0.5", "--stream-rates", "0.5"]
    assert command.main([*SHORT, *arguments, "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    assert "FIGURES MEAN NOTHING" in out
    assert "| 0.50 x" in out

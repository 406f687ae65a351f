"""`photonlite verify`: a table, JSON lines, and an exit code."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import photonlite
from photonlite.cli import main
from photonlite.verification import Row

GOOD = Row("features", "another", "1e-7 relative", "0.0001", passed=True)
BAD = Row("logits", "another", "2 relative", "0.0001", passed=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was verified; the rows of a model are named by it."""
    seen: list[Any] = []

    def verify(model: str | None, **where: Any) -> Iterator[Row]:
        seen.append((model, where))
        yield GOOD
        if model == "bad":
            yield BAD

    monkeypatch.setattr(photonlite, "verify", verify, raising=False)
    return seen


def test_a_table_is_printed_and_the_code_tells(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--device", "cpu"]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["verify", "bad", "--dtype", "float32"]) == 1
    lines = capsys.readouterr().out.splitlines()

    assert [line.split()[0] for line in lines] == ["CHECK", "features", "logits"]
    assert lines[2].endswith("FAILED")
    assert [model for model, _ in asked] == [None, "bad"]
    assert asked[1][1] == {"device": "auto", "dtype": "float32", "revision": None}


def test_json_lines_hold_every_field(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bad", "--json"]) == 1

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["check"], first["passed"], second["passed"]) == ("features", True, False)


def test_a_family_without_another_implementation_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    itself = Row("22 answers, pipelined", "itself, one step at a time", "none", "ties only", passed=True)
    found = [itself]
    monkeypatch.setattr(photonlite, "verify", lambda model, **where: iter(found), raising=False)

    assert main(["verify"]) == 0
    assert "compared with itself only" in capsys.readouterr().err
    found.append(GOOD)
    assert main(["verify"]) == 0
    assert "itself" not in capsys.readouterr().err


def test_a_model_that_is_not_there_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "nowhere/at/all"]) == 2
    assert "unknown model" in capsys.readouterr().err

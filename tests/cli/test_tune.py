import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from photonlite.cli import main, tune
from photonlite.errors import SettingsError
from photonlite.tuning.schedule import Tuning, save_tuning
from tests.tuning.test_schedule import TUNING


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Each measurement of a card that is not here; its cache is a folder of the test."""
    seen: list[Any] = []

    def open_model(*where: Any) -> Any:
        def measure(say: Any) -> Tuning:
            seen.append(where)
            say("64 + 68 SMs")
            return TUNING

        return SimpleNamespace(made_for=dict(TUNING.made_for), tune=measure)

    monkeypatch.setattr(tune, "import_extra", lambda *_: SimpleNamespace(open_model=open_model))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return seen


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "photonlite" / "tuning").iterdir())


def test_a_model_is_measured_once_and_again_if_asked(measured: list[Any], tmp_path, capsys) -> None:
    assert main(["tune", "a/model", "--device", "cuda"]) == 0
    first = capsys.readouterr()
    assert main(["tune", "a/model", "--device", "cuda"]) == 0
    assert len(measured) == 1
    assert main(["tune", "a/model", "--again"]) == 0

    assert measured[0][:4] == ("a/model", "cuda", "auto", None)
    assert len(measured) == 2
    assert len(files(tmp_path)) == 1
    assert "64 + 68 SMs" in first.err
    assert [line.split() for line in first.out.splitlines()][2] == ["64", "0.49", "0.65", "0.60", "to", "0.72"]
    assert first.out.splitlines()[-3].split() == ["32", "streams", "24.00", "ms", "20.00", "ms", "1.20"]
    assert first.out.splitlines()[-1] == "the schedule of 32 streams is used: it gives decoding 64 SMs, encoding 68"
    assert first.err.splitlines()[-1].endswith(": photonlite serve --model a/model --encoding beside uses it")


def test_a_stale_or_damaged_file_is_said_and_made_anew(measured: list[Any], tmp_path, capsys) -> None:
    main(["tune"])
    [path] = files(tmp_path)
    path.write_text("{")

    assert main(["tune", "--json"]) == 0

    found = capsys.readouterr()
    assert len(measured) == 2
    assert "measuring again" in found.err
    assert "is damaged" in found.err
    assert json.loads(found.out.splitlines()[-1])["made_for"] == TUNING.made_for


def test_a_named_file_is_shown_without_a_card(tmp_path: Path, capsys) -> None:
    save_tuning(tmp_path / "one.json", TUNING)

    code = main(["tune", "--file", str(tmp_path / "one.json")])

    assert code == 0
    assert "32 streams" in capsys.readouterr().out


def test_a_named_file_that_cannot_be_used_is_an_error(tmp_path: Path, capsys) -> None:
    (tmp_path / "one.json").write_text("[]")

    assert main(["tune", "--file", str(tmp_path / "one.json")]) == 2
    assert "one.json is damaged" in capsys.readouterr().err


def test_on_a_cpu_there_is_nothing_to_tune(capsys) -> None:
    assert main(["tune", "--device", "cpu"]) == 2
    assert "nothing to tune on a CPU" in capsys.readouterr().err
    with pytest.raises(SettingsError):
        tune.import_extra("photonlite.tuning.loading", "").open_model(None, "cpu", "auto", None, "0")

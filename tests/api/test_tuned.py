"""Tuning files that an engine uses, on a CPU that passes for a card."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import photonlite
from photonlite.api import tuned
from photonlite.cli import main
from photonlite.config import EngineConfig
from photonlite.engine import build
from photonlite.errors import SettingsError, TuningError
from photonlite.tuning import made_for
from photonlite.tuning.schedule import save_tuning, tuning_file
from tests.serving import CPU, IMAGE, double, serve
from tests.tuning.test_schedule import TUNING, changed

BESIDE = EngineConfig(encoding="beside")
CUDA = torch.device("cuda", 0)
LOADED = double()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a tuning must be made for, on a card of 132 SMs."""
    monkeypatch.setattr(made_for, "card_of", lambda _: ("NVIDIA H200", 132))
    return made_for.made_for(LOADED.model, LOADED.precisions, CPU, torch.float64, photonlite.__version__)


@pytest.fixture
def file(tmp_path: Path, make: dict[str, str]) -> Path:
    """The tuning of this card and model in a user's cache."""
    path = tuning_file(tmp_path / "photonlite" / "tuning", make)
    save_tuning(path, dataclasses.replace(TUNING, made_for=make))
    return path


def use(tmp_path: Path, config: EngineConfig = BESIDE, device: torch.device = CUDA) -> Any:
    return tuned.tuned_split(LOADED, device, torch.float64, config, {"XDG_CACHE_HOME": str(tmp_path)})


def test_the_file_in_the_users_cache_is_used(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    split = use(tmp_path)

    assert split.encode_sms == 68
    assert split.source == f"the schedule of 32 streams in {file}"
    assert not caplog.messages
    assert use(tmp_path / "empty") is None
    assert not caplog.messages


@pytest.mark.parametrize(
    "settings", [{}, {"encoding": "beside", "encode_sms": 0}, {"encoding": "beside", "cuda_graphs": False}]
)
def test_no_file_is_looked_for_where_settings_leave_no_choice(file: Path, tmp_path: Path, settings: Any) -> None:
    assert use(tmp_path, EngineConfig(**settings)) is None


def test_on_a_cpu_no_file_is_looked_for(file: Path, tmp_path: Path) -> None:
    assert use(tmp_path, device=CPU) is None


def other_torch(raw: Any) -> None:
    raw["made_for"]["torch"] = "1.0"


def not_measured(raw: Any) -> None:
    raw["streams"]["32"]["encode_share"] = 0.2


REFUSED = [
    (lambda raw: raw["made_for"].update(card="NVIDIA A100"), "made for card 'NVIDIA A100', this is 'NVIDIA H200'"),
    (lambda raw: raw["made_for"].update(model="another"), "made for model 'another', this is 'layers"),
    (lambda raw: raw["made_for"].update(weights="int8"), "made for weights 'int8', this is 'full'"),
    (other_torch, "made for torch '1.0', this is"),
    (lambda raw: raw.update(format=1), "format 1 is not 3"),
    (lambda raw: raw.pop("streams"), "is damaged: KeyError: 'streams'"),
    (not_measured, "of shares below 1 0.500 to 0.700 were measured"),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSED)
def test_a_named_file_that_cannot_be_used_is_refused(file: Path, tmp_path: Path, change: Any, complaint: str) -> None:
    config = dataclasses.replace(BESIDE, tuning=str(changed(file, change)))

    with pytest.raises(TuningError) as refused:
        use(tmp_path, config)

    assert file.name in str(refused.value)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(("change", "complaint"), REFUSED)
def test_one_that_was_only_found_is_left_out_with_one_line(
    file: Path, tmp_path: Path, change: Any, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    changed(file, change)

    assert use(tmp_path) is None

    [line] = caplog.messages
    assert line.startswith(f"Falling back to the default tuning: tuning file {file}")
    assert complaint in line


@pytest.mark.parametrize("error", [PermissionError("of another user"), SettingsError("there is no home")])
def test_a_cache_that_cannot_be_searched_is_left_out_with_one_line(
    file: Path, tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path, made_for: Any) -> Path:
        raise error

    monkeypatch.setattr(tuned, "find_tuning", refuse)

    assert use(tmp_path) is None

    assert caplog.messages == [f"Falling back to the default tuning: {error}"]


def test_a_file_of_another_version_is_said_to_be_stale(
    file: Path, tmp_path: Path, make: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    older = {**make, "torch": "1.0"}
    file.unlink()
    save_tuning(tuning_file(file.parent, older), dataclasses.replace(TUNING, made_for=older))

    assert use(tmp_path) is None

    [line] = caplog.messages
    assert "made for torch '1.0', this is" in line
    assert line.endswith("run photonlite tune again")


def test_the_context_is_a_setting_and_no_other_model(make: dict[str, str]) -> None:
    shape = LOADED.model.shape
    longer = dataclasses.replace(shape, max_context=2 * shape.max_context)
    wider = dataclasses.replace(shape, dim=2 * shape.dim)

    class Resized:
        crop_spec = LOADED.model.crop_spec

    for resized, same in ((longer, True), (wider, False)):
        model: Any = Resized()
        model.shape = resized
        made = made_for.made_for(model, LOADED.precisions, CPU, torch.float64, photonlite.__version__)
        assert (made == make) is same


def ask(monkeypatch: pytest.MonkeyPatch, **engine: Any) -> tuple[int, Any, str]:
    """Answer a question; returns SMs of the encoder, the scheduler's limits, and which tuning the metrics tell of."""
    sms: list[int] = []
    monkeypatch.setattr(build, "_divide", lambda _, encode_sms: sms.append(encode_sms))
    with serve(double(), encoding="beside", **engine) as model:
        model.caption(IMAGE, "short")
        metrics, plan = model.metrics(), str(model.memory_plan())
        limits = model._session.engine._core.scheduler.policy.limits
    assert (f"encoding and decoding by {metrics['tuning']}" in plan) == bool(metrics["tuning"])
    return sms[0], limits, metrics["tuning"]


def test_the_engine_divides_as_the_schedule_says(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "photonlite")
    source = f"the schedule of 32 streams in {file}"
    sms, limits, found = ask(monkeypatch, tuning=str(file))
    assert (sms, found) == (68, source)
    assert limits.parts.at(32) == pytest.approx((0.5, 0.72))
    assert f"Encoding and decoding: in parts, by {source}" in caplog.messages

    changed(file, lambda raw: raw["streams"]["32"].update(encode_share=0.6))
    sms, limits, found = ask(monkeypatch, tuning=str(file))
    assert (sms, found) == (84, source)
    assert limits.parts.at(32) == pytest.approx((0.6, 0.56))


def test_the_engine_takes_turns_where_the_schedule_does(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "photonlite")

    sms, limits, found = ask(monkeypatch, tuning=str(changed(file, lambda raw: raw.update(use=8))))

    assert (sms, limits.encodes_beside, limits.parts) == (0, False, None)
    assert f"Encoding and decoding: by turns, by {found}" in caplog.messages


def test_without_a_division_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    sms, limits, found = ask(monkeypatch)

    assert (sms, limits.encodes_beside, limits.parts, found) == (0, True, None, "")


def test_a_restarted_engine_keeps_its_tuning(file: Path) -> None:
    with serve(double(), encoding="beside", tuning=str(file)) as model:
        engine = model._session.engine
        again = engine.restarted()
        again.close(drain=False)

    assert again.metrics.tuning == engine.metrics.tuning == f"the schedule of 32 streams in {file}"
    assert f"encoding  by {again.metrics.tuning}" in again.metrics.summary()


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda path: None, "there is no tuning file"),
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: save_tuning(path, TUNING), "made for card 'NVIDIA H200', this is 'cpu'"),
    ],
)
def test_a_server_refuses_a_named_file_with_the_reason(
    write: Any, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    write(path)

    code = main(["serve", "--plan", "--device", "cpu", "--encoding", "beside", "--tuning", str(path)])

    assert code == 2
    assert str(path) in (said := capsys.readouterr().err)
    assert complaint in said

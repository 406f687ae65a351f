import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from photonlite.config import EngineConfig
from photonlite.errors import TuningError
from photonlite.scheduler.parts import WEIGHTS, PartSpeeds, table_at
from photonlite.tuning.schedule import Tuning, save_tuning
from photonlite.tuning.split import Split, read_split, split_by_settings
from tests.tuning.test_schedule import MADE_FOR, TUNING, changed

CUDA = torch.device("cuda", 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_tuning(tmp_path / "one.json", TUNING)
    return tmp_path / "one.json"


def test_a_tuning_gives_the_division_and_the_speeds_there_by_streams(file: Path) -> None:
    split = read_split(file, MADE_FOR)

    assert split.encode_sms == 68
    assert split.source == f"the schedule of 32 streams in {file}"
    assert split.parts is not None
    assert split.parts.speeds == {8: pytest.approx((0.52, 0.64)), 32: pytest.approx((0.5, 0.72))}


def test_another_share_of_the_encoder_divides_the_gpu_in_another_way(file: Path) -> None:
    split = read_split(changed(file, lambda raw: raw["streams"]["32"].update(encode_share=0.6)), MADE_FOR)

    assert split.encode_sms == 132 - 48
    assert split.parts is not None
    assert split.parts.at(8) == pytest.approx((0.60, 0.525)), "half the way between 32 and 64 SMs"


def test_numbers_of_streams_without_pairs_say_nothing_about_speeds(file: Path) -> None:
    split = read_split(changed(file, lambda raw: raw["streams"]["8"].update(pairs=[])), MADE_FOR)

    assert split.parts is not None
    assert set(split.parts.speeds) == {32}


def test_a_schedule_in_turns_divides_nothing(file: Path) -> None:
    split = read_split(changed(file, lambda raw: raw.update(use=8)), MADE_FOR)

    assert split == Split(0, None, f"the schedule of 8 streams in {file}")


def test_a_file_that_does_not_fit_is_refused(file: Path) -> None:
    with pytest.raises(TuningError, match="made for card 'NVIDIA H200', this is 'cpu'"):
        read_split(file, {**MADE_FOR, "card": "cpu", "sms": "0"})


def timed(tmp_path: Path, steps: dict[int, float]) -> Tuning:
    one = TUNING.streams[32]
    streams = {count: dataclasses.replace(one, step_s=step) for count, step in steps.items()}
    return dataclasses.replace(TUNING, streams=streams)


@pytest.mark.parametrize(
    ("steps", "weights"),
    [
        ({8: 0.0014, 32: 0.0026, 64: 0.0042}, 20),  # 1 ms, and 0.05 for each row
        ({32: 0.0026}, WEIGHTS),
        ({8: 0.003, 32: 0.002}, WEIGHTS),  # noise
    ],
)
def test_times_of_steps_tell_how_long_reading_the_weights_takes(
    tmp_path: Path, steps: dict[int, float], weights: float
) -> None:
    save_tuning(tmp_path / "one.json", timed(tmp_path, steps))

    parts = read_split(tmp_path / "one.json", MADE_FOR).parts

    assert parts is not None
    assert parts.weights == pytest.approx(weights)


def on_card(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def test_without_a_tuning_there_is_a_default_by_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    on_card(monkeypatch, (9, 0))
    split = split_by_settings(CUDA, EngineConfig(encoding="beside"))

    assert split == Split(68, table_at(64 / 132), "the default of compute capability 9.0")
    assert split.parts is not None
    assert split.parts.at(32) == PartSpeeds(0.54, 0.67)
    on_card(monkeypatch, (8, 0))
    assert split_by_settings(CUDA, EngineConfig(encoding="beside")) is None
    assert split_by_settings(torch.device("cpu"), EngineConfig(encoding="beside")) is None


@pytest.mark.parametrize(
    "settings", [{}, {"encoding": "beside", "cuda_graphs": False}, {"encoding": "beside", "encode_sms": 0}]
)
def test_the_settings_can_leave_the_card_whole(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_card(monkeypatch, (9, 0))

    assert split_by_settings(CUDA, EngineConfig(**settings)) is None


def test_a_number_of_sms_goes_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    on_card(monkeypatch, (9, 0))
    config = EngineConfig(encoding="beside", encode_sms=92)

    assert split_by_settings(CUDA, config) == Split(92, table_at(1 - 92 / 132), "the setting encode_sms")
    assert split_by_settings(torch.device("cpu"), config) == Split(92, table_at(0.5), "the setting encode_sms")

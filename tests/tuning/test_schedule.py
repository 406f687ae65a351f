import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair
from photonlite.tuning.schedule import (
    StreamTuning,
    Tuning,
    find_tuning,
    load_tuning,
    save_tuning,
    tuning_file,
)

MADE_FOR = {"card": "NVIDIA H200", "sms": "132", "model": "Moondream 2", "torch": "2.11.0"}
PAIRS = (Pair(64, 0.5, 0.6), Pair(64, 0.5, 0.72), Pair(32, 0.7, 0.4))
TUNING = Tuning(
    MADE_FOR,
    {
        8: StreamTuning(0.0013, (Pair(64, 0.52, 0.64), Pair(32, 0.68, 0.41)), 0.024, 0.024, 1.0),
        32: StreamTuning(0.002, PAIRS, 0.024, 0.02, 0.5),
    },
    32,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tuning" / "one.json"
    save_tuning(path, TUNING)
    return path


def changed(file: Path, change: Any) -> Path:
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))
    return file


def test_a_tuning_is_read_as_it_was_written(file: Path) -> None:
    assert load_tuning(file, MADE_FOR) == TUNING
    assert load_tuning(file) == TUNING
    assert [path.name for path in file.parent.iterdir()] == ["one.json"]


@pytest.mark.parametrize(("name", "value"), [("card", "NVIDIA A100"), ("model", "another"), ("torch", "2.13.0")])
def test_a_file_of_another_card_model_or_version_is_refused(file: Path, name: str, value: str) -> None:
    with pytest.raises(TuningError, match=f"one.json.*made for {name} '{MADE_FOR[name]}', this is '{value}'"):
        load_tuning(file, {**MADE_FOR, name: value})


def test_a_file_without_something_that_counts_is_refused(file: Path) -> None:
    with pytest.raises(TuningError, match="made for driver 'unknown', this is '580'"):
        load_tuning(file, {**MADE_FOR, "driver": "580"})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"format": 3}', "\xff", '{"format": 3, "made_for": 3}']
)
def test_damaged_files_are_refused(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(TuningError, match=r"one\.json is damaged"):
        load_tuning(file)


def test_a_missing_file_and_one_of_another_format_are_refused(file: Path) -> None:
    with pytest.raises(TuningError, match="there is no tuning file"):
        load_tuning(file.parent / "none.json")
    with pytest.raises(TuningError, match="format 1 is not 3: run photonlite tune again"):
        load_tuning(changed(file, lambda raw: raw.update(format=1)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda raw: raw.update(use=16), r"it uses the schedule of 16 streams, but has \[8, 32\]"),
        (lambda raw: raw.update(streams={}), r"32 streams, but has \[\]"),
        (lambda raw: raw["streams"]["8"].update(step_s=0), "8 streams: step_s is 0.0: give seconds above 0"),
        (lambda raw: raw["streams"]["8"].update(planned_s=float("nan")), "8 streams: planned_s is nan"),
        (
            lambda raw: raw["streams"]["32"].update(encode_share=0.2),
            r"is 0\.2: of shares below 1 0\.500 to 0\.700 were",
        ),
        (lambda raw: raw["streams"]["32"].update(encode_share=float("nan")), "32 streams: encode_share is nan"),
        (lambda raw: raw["streams"]["8"].update(encode_share=1.5), "8 streams: encode_share is 1.5"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(sms=132), "132 SMs of decoding: give 1 to 131"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(other=0), "8 streams: a pair needs speeds above 0"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(compute=float("nan")), "a pair needs speeds above 0"),
        (
            lambda raw: raw["streams"]["32"].update(pairs=[]),
            "32 streams: encode_share is 0.5: of shares below 1 none was",
        ),
        (lambda raw: raw["streams"]["8"].pop("turns_s"), "damaged: KeyError: 'turns_s'"),
        (lambda raw: raw["made_for"].pop("sms"), "damaged: KeyError: 'sms'"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(sms=64.7), "64.7 SMs of decoding: give 1 to 131"),
        (lambda raw: raw.update(use=float("inf")), "damaged: OverflowError"),
    ],
)
def test_impossible_measurements_are_refused_with_the_reason(file: Path, change: Any, complaint: str) -> None:
    changed(file, change)

    with pytest.raises(TuningError, match=rf"one\.json .*{complaint}"):
        load_tuning(file)


def test_the_encoders_share_beside_decoding_says_how_the_card_is_divided(file: Path) -> None:
    assert load_tuning(file).decode_sms == 64
    assert load_tuning(changed(file, lambda raw: raw.update(use=8))).decode_sms is None

    changed(file, lambda raw: raw.update(use=32) or raw["streams"]["32"].update(encode_share=0.6))
    assert load_tuning(file).decode_sms == 48, "on a line between 32 and 64"


def test_a_file_is_found_by_card_model_and_versions_else_a_stale_one(tmp_path: Path) -> None:
    path = tuning_file(tmp_path, MADE_FOR)
    newer = {**MADE_FOR, "torch": "2.13.0"}

    assert find_tuning(tmp_path / "none", MADE_FOR) is None
    save_tuning(path, TUNING)

    assert find_tuning(tmp_path, MADE_FOR) == find_tuning(tmp_path, newer) == path
    assert find_tuning(tmp_path, {**MADE_FOR, "card": "NVIDIA A100"}) is None
    save_tuning(tuning_file(tmp_path, newer), dataclasses.replace(TUNING, made_for=newer))
    assert find_tuning(tmp_path, MADE_FOR) == path
    assert find_tuning(tmp_path, newer) == tuning_file(tmp_path, newer) != path

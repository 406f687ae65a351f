import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair
from photonlite.tuning.problem import Operation
from photonlite.tuning.schedule import (
    Schedule,
    Slot,
    StreamTuning,
    Tuning,
    find_tuning,
    load_tuning,
    save_tuning,
    tuning_file,
)

MADE_FOR = {"card": "NVIDIA H200", "sms": "132", "model": "Moondream 2", "torch": "2.11.0"}
OPERATIONS = (
    Operation("encode", "compute", 9, {9: 0.012}),
    Operation("decode", "memory", 6, {2: 0.004, 4: 0.008, 6: 0.012}, serial=True),
)
PIECES = (
    Slot("decode", 0, 4, 0.5, 0.0, 0.012),
    Slot("encode", 0, 9, 0.5, 0.0, 0.02),
    Slot("decode", 4, 6, 1.0, 0.02, 0.024),
)
PAIRS = (Pair(64, 0.5, 0.6), Pair(64, 0.5, 0.72), Pair(32, 0.7, 0.4))
TURNS = (Slot("decode", 0, 6, 1.0, 0.0, 0.012), Slot("encode", 0, 9, 1.0, 0.012, 0.024))
TUNING = Tuning(
    MADE_FOR,
    {
        8: StreamTuning(0.0013, (Pair(64, 0.52, 0.64), Pair(32, 0.68, 0.41)), Schedule(OPERATIONS, TURNS)),
        32: StreamTuning(0.002, PAIRS, Schedule(OPERATIONS, PIECES)),
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


def wait_in_a_cycle(operations: Any) -> None:
    operations[0]["after"], operations[1]["after"] = ["decode"], ["encode"]


def rename(schedule: Any, name: str, other: str) -> None:
    for one in (*schedule["operations"], *schedule["pieces"]):
        one.update({key: other for key, value in one.items() if value == name})


def two_divisions() -> list[dict[str, Any]]:
    slots = Slot("encode", 0, 3, 0.5, 0.0, 0.006), Slot("encode", 3, 9, 0.6, 0.006, 0.02), TURNS[0]
    return [
        dataclasses.asdict(slot) for slot in (*slots[:2], dataclasses.replace(slots[2], starts_s=0.02, ends_s=0.04))
    ]


def schedule_of(raw: dict[str, Any]) -> Any:
    return raw["streams"]["32"]["schedule"]


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
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"format": 2}', "\xff", '{"format": 2, "made_for": 3}']
)
def test_damaged_files_are_refused(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(TuningError, match=r"one\.json is damaged"):
        load_tuning(file)


def test_a_missing_file_and_one_of_another_format_are_refused(file: Path) -> None:
    with pytest.raises(TuningError, match="there is no tuning file"):
        load_tuning(file.parent / "none.json")
    with pytest.raises(TuningError, match="format 1 is not 2: run photonlite tune again"):
        load_tuning(changed(file, lambda raw: raw.update(format=1)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: one["pieces"][0].update(share=0.6), r"shares sum to 1\.100 after 0\.000 ms"),
        (lambda one: one["pieces"][2].update(starts_s=0.015), r"shares sum to 1\.500 after 15\.000 ms"),
        (lambda one: one["pieces"].pop(1), "'encode' cover 0 positions of 9"),
        (lambda one: one["pieces"].pop(0), "'decode' leave out or repeat position 0"),
        (lambda one: one["pieces"][0].update(end=5), "'decode' leave out or repeat position 4"),
        (lambda one: one["pieces"][2].update(end=5), "'decode' cover 5 positions of 6"),
        (lambda one: one["pieces"][0].update(operation="prefill"), "'prefill', which is no operation"),
        (lambda one: one["pieces"][2].update(starts_s=0.0, ends_s=0.004), "decode 4:6 starts before decode 0:4"),
        (lambda one: one["operations"][0].update(after=["decode"]), "encode 0:9 starts before decode"),
        (lambda one: one["operations"][0].update(resource="memory"), "two pieces of one resource"),
        (lambda one: one["operations"][0].update(resource="disk"), "'disk' is none of"),
        (lambda one: one["pieces"][0].update(share=0), r"share must be in \(0, 1\]"),
        (lambda one: one["pieces"][0].update(ends_s=-1.0), "times must ascend"),
        (lambda one: one["pieces"][0].update(when=3), "damaged: TypeError"),
        (lambda one: wait_in_a_cycle(one["operations"]), "in a cycle: decode, encode"),
        (lambda one: one["operations"][0].update(seconds={}), "'encode' needs a batch of at least 1"),
        (lambda one: one["operations"][0].update(seconds={"9": float("nan")}), "'encode' needs a batch"),
        (lambda one: one["operations"][0].update(seconds={"3": 0.004}), "'encode' has no seconds for its batch of 9"),
        (lambda one: rename(one, "encode", "resize"), "32 streams: the schedule has no operation 'encode'"),
        (lambda one: rename(one, "decode", "prefill"), "32 streams: the schedule has no operation 'decode'"),
        (
            lambda one: one["pieces"][1].update(share=0.2),
            r"'encode' has a share of 0\.2: of those below 1 0\.500 to 0\.700 were measured",
        ),
        (lambda one: one["pieces"].__setitem__(slice(None), two_divisions()), "'encode' has shares of 0.5 and 0.6"),
    ],
)
def test_impossible_schedules_are_refused_with_the_reason(file: Path, change: Any, complaint: str) -> None:
    changed(file, lambda raw: change(schedule_of(raw)))

    with pytest.raises(TuningError, match=complaint):
        load_tuning(file, MADE_FOR)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda raw: raw.update(use=16), r"it uses the schedule of 16 streams, but has \[8, 32\]"),
        (lambda raw: raw.update(streams={}), r"32 streams, but has \[\]"),
        (lambda raw: raw["streams"]["8"].update(step_s=0), "8 streams: a decode step takes more than 0 s"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(sms=132), "132 SMs of decoding: give 1 to 131"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(other=0), "8 streams: a pair needs speeds above 0"),
        (lambda raw: raw["streams"]["8"]["pairs"][0].update(compute=float("nan")), "a pair needs speeds above 0"),
        (lambda raw: raw["streams"]["32"].update(pairs=[]), "'encode' has a share of 0.5: of those below 1 none was"),
        (lambda raw: raw["streams"]["8"].pop("schedule"), "damaged: KeyError: 'schedule'"),
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

    def give_more(raw: Any) -> None:
        decode, encode, _ = schedule_of(raw)["pieces"]
        decode["share"], encode["share"], raw["use"] = 0.4, 0.6, 32

    assert load_tuning(changed(file, give_more)).decode_sms == 48, "on a line between 32 and 64"


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


def test_pieces_that_touch_do_not_meet() -> None:
    late = (*PIECES[:2], Slot("decode", 4, 6, 1.0, 0.02 - 1e-9, 0.024))

    assert Schedule(OPERATIONS, late).makespan == 0.024

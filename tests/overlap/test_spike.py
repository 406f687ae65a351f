import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from bench.overlap import __main__ as command
from bench.overlap import served
from bench.overlap.chart import main as draw
from bench.overlap.rows import (
    HEAD,
    HOWS,
    PARTS,
    PROGRAMS,
    STREAMS,
    TUNED,
    TURNS,
    Row,
    best_split,
    load_rows,
    rows_table,
)
from bench.overlap.spike import Spike, run_all
from bench.overlap.standin import HostCard
from photonlite.errors import SettingsError
from photonlite.tuning import made_for
from photonlite.tuning.paces import Pace
from photonlite.tuning.schedule import load_tuning
from tests.tuning.virtual import Timed, VirtualCard

ENCODE = Timed("encode", 0.012)
STEPS = {8: Timed("decode", 0.001), 32: Timed("decode", 0.002)}
SPEEDS = {("decode", 64): 0.8, ("encode", 68): 0.5, ("decode", 32): 0.5, ("encode", 100): 0.6, ("tuned", 64): 0.9}
BESIDE = {("decode", "encode"): 0.75, ("encode", "decode"): 0.75}
NEVER = math.inf


class Kinds:
    """Stands in for `bench.overlap.tilings.Kinds`: a choice makes another kind of work of a step."""

    def capture(self, lane: Any, work: Timed, choices: Any) -> Any:
        return lane.capture(Timed(choices["kind"], work.seconds) if "kind" in choices else work)

    def search(self, card: Any, lane: Any, step: Any, until: float, say: Any) -> Any:
        assert until <= time.perf_counter() + 100
        return {"kind": "tuned"}

    def programs(self, choices: Any) -> str:
        return "few"


def spike(card: VirtualCard) -> Spike:
    subject: Any = SimpleNamespace(encode=ENCODE, step=STEPS.__getitem__, kinds=Kinds())
    return Spike(card, subject, list(STEPS))


def attempt(what: str, work: Any) -> None:
    work()


def test_every_way_is_measured_and_shares_are_of_the_speeds_on_the_whole_card() -> None:
    one = spike(VirtualCard(SPEEDS, BESIDE))

    run_all(one, attempt, list(STEPS), [64, 32], NEVER)

    found = {(row.how, row.streams, row.sms[0]): row for row in one.rows}
    assert {row.how for row in one.rows} == set(HOWS)
    assert found[TURNS, 32, 132].sum == pytest.approx(1, abs=0.03)
    plain = found[STREAMS, 32, 132]
    assert plain.shares == (pytest.approx(0.75), pytest.approx(0.75))
    part = found[PARTS, 32, 64]
    assert part.sms == (64, 68)
    assert part.decode_there.mean == pytest.approx(0.002 / 0.8)
    assert part.encode_there.mean == pytest.approx(0.012 / 0.5)
    assert part.shares == (pytest.approx(0.8 * 0.75), pytest.approx(0.5 * 0.75))
    assert found[TUNED, 32, 64].shares[0] == pytest.approx(0.9), "tilings for the part"
    assert "kind: tuned" in found[TUNED, 32, 64].note


def test_a_part_is_searched_once_for_a_number_of_streams() -> None:
    one = spike(VirtualCard(SPEEDS, BESIDE))

    run_all(one, attempt, list(STEPS), [64, 32], NEVER)

    tuned = [(row.streams, row.sms[0]) for row in one.rows if row.how == TUNED]
    assert sorted(tuned) == [(8, 64), (32, 32), (32, 64)]


def test_no_search_begins_after_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    one = spike(VirtualCard(SPEEDS, BESIDE))
    one.parts(64)

    one.tuned(32, None, time.perf_counter() - 1)

    assert [row.how for row in one.rows] == [PARTS, PARTS]
    assert "no time is left" in capsys.readouterr().out


def test_work_that_is_too_fast_for_its_part_is_called_out() -> None:
    one = spike(VirtualCard({("encode", 68): 0.95}))
    one.parts(64)
    confined = spike(VirtualCard(SPEEDS))
    confined.parts(64)

    assert one.rows[0].note == "NOT CONFINED: 95% of its speed on 52% of the SMs"
    assert confined.rows[0].note == ""


def test_a_card_without_parts_costs_only_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(card: Any, sms: int) -> Any:
        raise SettingsError("this driver cannot divide a card")

    monkeypatch.setattr(VirtualCard, "divided", refuse)
    one, failures = spike(VirtualCard(SPEEDS, BESIDE)), []

    def carefully(what: str, work: Any) -> None:
        try:
            work()
        except SettingsError:
            failures.append(what)

    run_all(one, carefully, list(STEPS), [64], NEVER)

    assert {row.how for row in one.rows} == {TURNS, STREAMS, PROGRAMS}
    assert failures == ["parts, 64 SMs for decoding", "own tilings for 64 SMs"]


def test_rows_are_written_read_and_shown(tmp_path) -> None:
    pace = Pace(0.002, 0.004, 100)
    row = Row(PARTS, 8, (64, 68), 0.001, 0.012, pace, Pace(0.024, 0.024, 9), pace, Pace(0.03, 0.03, 7), "a note")
    command.save_rows(tmp_path / "a" / "rows.json", [row], {"machine": "none"})

    assert load_rows(tmp_path / "a" / "rows.json") == ([row], {"machine": "none"})
    assert row.cells() == [
        PARTS, "8", "64 + 68", "2.00 ms", "41.7/s", "2.00 ms", "4.00", "33.3/s", "0.50", "0.40", "0.90"
    ]  # fmt: skip
    assert len(row.cells()) == len(HEAD)
    assert rows_table([row]).endswith("- parts, 8 streams, 64 SMs: a note")


def test_the_best_split_has_the_largest_sum_of_its_streams() -> None:
    one = spike(VirtualCard(SPEEDS, BESIDE))
    one.parts(64)
    one.parts(32)

    assert best_split(one.rows, 32) == (64, 68)
    assert best_split(one.rows, 99) is None


def test_a_lane_that_fails_does_not_leave_the_other_waiting() -> None:
    card, lanes = HostCard(), []
    try:
        lanes = [card.whole(), card.whole()]

        def fail() -> None:
            raise ValueError("on its lane")

        with pytest.raises(ValueError, match="on its lane"):
            card.run([(lanes[0], [fail]), (lanes[1], [lambda: None] * 3)])
        assert [len(ends) for ends in card.run([(lane, [lambda: None]) for lane in lanes])] == [1, 1]
    finally:
        card.close()


@pytest.mark.long
def test_the_command_rehearses_on_a_cpu_and_its_file_is_drawn(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--spike",
        "--profile",
        "--device",
        "cpu",
        "--tiny",
        "--streams",
        "1",
        "2",
        "--splits",
        "64",
        "--seconds",
        "0.02",
    ]
    page, data, image = tmp_path / "overlap.md", tmp_path / "data", tmp_path / "overlap.png"

    code = command.main([*arguments, "--limit", "100", "--output", str(page), "--data", str(data)])

    assert code == 0, capsys.readouterr().out
    rows, about = load_rows(data / "spike.json")
    assert {row.how for row in rows} == set(HOWS)
    assert all(row.sum > 0 for row in rows)
    assert about["command"].startswith("python -m bench.overlap --spike")
    assert page.read_text().count("\n| parts") == 2 + 2
    assert load_tuning(data / "tuning.json").streams.keys() == {1, 2}
    assert all(f"## {name}" in page.read_text() for name in ("Pairs", "Roofline", "Schedules"))
    assert draw([str(data / "spike.json"), str(image)]) == 0
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_an_engine_uses_what_was_measured_before(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made_for, "card_of", lambda _: ("the host", 132))
    used: list[str] = []
    serve = served.serve

    def spied(*arguments: Any) -> Any:
        model = serve(*arguments)
        used.append(model.metrics()["tuning"])
        return model

    monkeypatch.setattr(served, "serve", spied)
    options = "--profile --engine --ways turns tuned --device cpu --tiny --streams 2 --splits 64 --rounds 1 --clients 1"

    code = command.main([*options.split(), "--seconds", "0.02", "--window", "0.2", "--data", str(tmp_path)])

    assert code == 0, capsys.readouterr().out
    assert used == ["", f"the schedule of 2 streams in {tmp_path / 'tuning.json'}"]

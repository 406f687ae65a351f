"""The command with trials that do what a test wants, and a real trial against a server that is broken."""

import dataclasses
import json
from itertools import count

import pytest

from bench.campaign import images, server
from bench.campaign.__main__ import TRIALS, main
from bench.campaign.state import State
from bench.campaign.trial import Outcome, Setup, Trial


def make(name, outcomes, aim=3, adds_up=True):
    """A trial whose n-th batch is what a function makes of its number."""

    def run(setup, first):
        number = first
        while True:
            yield [outcomes(number)]
            number += 1

    return Trial(name, name, aim, "it fails", run, adds_up)


@pytest.fixture
def command(tmp_path):
    def run(trials, *arguments):
        files = ["--state", str(tmp_path / "state.json"), "--output", str(tmp_path / "page.md")]
        return main([*files, *arguments], trials), State.load(tmp_path / "state.json")

    return run


def test_trials_go_on_behind_the_last_number_until_their_aim(command):
    seen = []
    good = make("good", lambda number: Outcome(number, figures={"seen": seen.append(number) or 1.0}))

    assert command([good], "--seed", "5")[0] == 0
    code, state = command([good, make("other", Outcome)], "--minutes", "60")

    assert code == 0
    assert seen == [0, 1, 2]  # the aim was reached: the second run is about the other one
    assert {name: tally.counted for name, tally in state.tallies.items()} == {"good": 3, "other": 3}
    assert [(run["seed"], run["trials"]) for run in state.runs] == [(5, ["good"]), (1, ["other"])]
    assert set(state.runs[0]["versions"]) >= {"photonlite", "torch", "schemathesis"}


def test_with_all_aims_reached_more_is_counted_while_there_is_time(command):
    good = make("good", Outcome)
    command([good])

    _, state = command([good], "--minutes", "0.001")

    assert state.tallies["good"].counted > 3


def test_a_failure_is_counted_ends_nothing_and_is_the_exit_code(command, tmp_path, capsys):
    bad = make("bad", lambda number: Outcome(number, "it broke" if number == 1 else ""))
    good = make("good", Outcome)

    code, state = command([bad, good])

    assert code == 1
    assert {name: (one.counted, one.failed) for name, one in state.tallies.items()} == {"bad": (3, 1), "good": (3, 0)}
    assert "- bad 1 (seed 1): `it broke`" in (tmp_path / "page.md").read_text()
    assert "1 failed in this run" in capsys.readouterr().out
    assert command([bad, good], "--only", "good", "--minutes", "0.001")[0] == 0  # the exit code is that of a run


def test_a_trial_that_breaks_off_is_a_failure_and_others_go_on(command, capsys):
    def broken(number):
        if number == 1:
            raise RuntimeError("no server")
        return Outcome(number)

    code, state = command([make("broken", broken), make("good", Outcome)])

    assert code == 1
    assert state.tallies["broken"].failures == [
        {"number": 1, "seed": 1, "line": "the trial broke off: RuntimeError('no server')"}
    ]
    assert state.tallies["broken"].next == 2  # the next run does not stop at the same case
    assert state.tallies["good"].counted == 3
    assert "no server" in capsys.readouterr().err


def test_of_a_trial_that_does_not_add_up_the_longest_run_counts(command):
    short, long = (make("soak", Outcome, aim, adds_up=False) for aim in (2, 4))

    command([short])
    _, state = command([long])

    assert (state.tallies["soak"].counted, state.tallies["soak"].next) == (4, 6)


def test_a_trial_of_one_long_run_goes_on_behind_its_aim_until_the_time_is_over(command, monkeypatch):
    minutes = count()
    monkeypatch.setattr(Setup, "left_s", property(lambda setup: 60.0 * (5 - next(minutes))))

    _, state = command([make("soak", Outcome, 3, adds_up=False)], "--minutes", "5")

    assert state.tallies["soak"].counted > 3


def test_closing_a_trial_ends_its_server(command):
    ended = []

    def run(setup, first):
        try:
            while True:
                yield [Outcome(first)]
        finally:
            ended.append(True)

    command([Trial("one", "one", 1, "it fails", run)])

    assert ended == [True]


def test_states_of_runs_side_by_side_are_added_without_a_run(command, tmp_path):
    good, soak = make("good", Outcome), make("soak", Outcome, 4, adds_up=False)
    others = []
    for seed in (2, 3):
        others.append(str(tmp_path / f"{seed}.json"))
        command([good, soak], "--seed", str(seed), "--state", others[-1])
    command([good, soak])

    code, state = command([good, soak], "--add", *others)

    assert code == 0
    assert {name: tally.counted for name, tally in state.tallies.items()} == {"good": 9, "soak": 4}
    assert [run["seed"] for run in state.runs] == [1, 2, 3]
    assert "| 1, 2, 3 | good, soak |" in " ".join((tmp_path / "page.md").read_text().split())


@pytest.mark.parametrize(
    "arguments", [["--only", "nothing"], ["--minutes", "0"], ["--seed", "x"], ["--add", "no/such.json"]]
)
def test_senseless_arguments_are_refused(command, arguments, capsys):
    with pytest.raises(SystemExit):
        command(TRIALS, *arguments)
    assert "error: " in capsys.readouterr().err


def test_names_are_those_that_the_command_line_knows():
    names = "images requests slow overload kills terms disk descriptors clock compiling soak"
    assert [trial.name for trial in TRIALS] == names.split()


@pytest.mark.long
def test_a_server_that_answers_wrongly_is_found(command, monkeypatch):
    monkeypatch.setattr(server, "SERVE", ("-m", "tests.campaign.broken_server"))
    monkeypatch.setattr(images, "BATCH", 8)

    code, state = command([dataclasses.replace(images.TRIAL, aim=8)])

    assert code == 1
    tally = state.tallies["images"]
    assert (tally.counted, tally.failed) == (8, 8)
    assert all("status 500: b'oops'" in failure["line"] for failure in tally.failures)
    assert json.dumps(tally.counts).count("status 500") == 1

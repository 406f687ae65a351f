import json

import pytest

from bench.campaign.state import KEPT_FAILURES, State, Tally
from bench.campaign.trial import Outcome


def test_counts_add_up_over_runs(tmp_path):
    path = tmp_path / "deep" / "state.json"
    for first in (0, 3):
        state = State.load(path)
        tally = state.tallies.setdefault("images", Tally())
        assert tally.next == first
        worst = {"slowest (s)": 2.0 - first}
        tally.add([Outcome(first + n, "lost" if n == 1 else "", worst, {"png": 2}) for n in range(3)], seed=7 + first)
        state.runs.append({"seed": 7 + first})
        state.save(path)

    state = State.load(path)
    tally = state.tallies["images"]
    assert (tally.counted, tally.next, tally.failed) == (6, 6, 2)
    assert tally.failures == [{"number": 1, "seed": 7, "line": "lost"}, {"number": 4, "seed": 10, "line": "lost"}]
    assert (tally.figures, tally.counts) == ({"slowest (s)": 2.0}, {"png": 12})
    assert [run["seed"] for run in state.runs] == [7, 10]
    assert [file.name for file in path.parent.iterdir()] == ["state.json"]


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "state.json"
    State({"clock": Tally(counted=1)}).save(path)

    with pytest.raises(TypeError):
        State({"clock": Tally(figures={"x": object()})}).save(path)  # type: ignore[dict-item]

    assert State.load(path).tallies["clock"].counted == 1


@pytest.mark.parametrize("content", [[], {}, {"tallies": {"images": {"cases": 3}}, "runs": []}, "text"])
def test_another_file_is_not_taken_for_a_state(tmp_path, content):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(content))

    with pytest.raises(ValueError, match="is not a state of the campaign"):
        State.load(path)


def test_only_the_first_failures_are_kept_in_one_line_each():
    tally = Tally()
    tally.add([Outcome(number, "a\nb  " + "x" * 1000) for number in range(KEPT_FAILURES + 5)], seed=0)

    assert (tally.failed, len(tally.failures)) == (KEPT_FAILURES + 5, KEPT_FAILURES)
    assert tally.failures[0]["line"].startswith("a b x")
    assert len(tally.failures[0]["line"]) == 500


@pytest.mark.parametrize("order", [1, -1])
def test_the_longer_of_two_runs_counts_and_all_failures_stay(order):
    short, long = Tally(counted=3, next=3, seconds=10, figures={"slope": 9.0}), Tally(counted=5, next=8, seconds=20)
    short.fail(1, 0, "alarm")

    kept = Tally.longer_of(*(short, long)[::order])

    assert (kept.counted, kept.next, kept.failed, kept.seconds, kept.figures) == (5, 8, 1, 30, {})
    assert len(kept.failures) == 1


def test_states_add_up_and_runs_are_appended():
    def state(seed, figures, counts, **tally):
        failures = [{"number": number, "seed": seed, "line": "lost"} for number in range(KEPT_FAILURES - 30)]
        one = Tally(failed=70, failures=failures, figures=figures, counts=counts, **tally)
        soak = Tally(counted=tally["counted"], next=tally["next"], seconds=tally["seconds"], figures={"slope": seed})
        return State({"images": one, "soak": soak}, [{"date": "2026-11-24", "seed": seed}])

    kept = state(1, {"worst": -2.0, "here": 1.0}, {"png": 2, "gif": 1}, counted=5, next=9, seconds=10.0)
    kept.add(state(2, {"worst": -1.0, "there": 4.0}, {"png": 3, "bmp": 1}, counted=4, next=4, seconds=20.0), {"soak"})
    kept.add(State({"clock": Tally(counted=7)}))

    images, soak = kept.tallies["images"], kept.tallies["soak"]
    assert (images.counted, images.next, images.failed, images.seconds) == (9, 9, 140, 30.0)
    assert [failure["seed"] for failure in images.failures] == 70 * [1] + 30 * [2]
    assert images.figures == {"worst": -1.0, "here": 1.0, "there": 4.0}
    assert images.counts == {"png": 5, "gif": 1, "bmp": 1}
    assert (soak.counted, soak.next, soak.seconds, soak.figures) == (5, 9, 30.0, {"slope": 1})
    assert kept.tallies["clock"].counted == 7
    assert [run["seed"] for run in kept.runs] == [1, 2]


def test_a_state_is_not_added_twice():
    state, other = State(), State({"clock": Tally(counted=7)}, [{"date": "2026-11-24", "seed": 3, "seconds": 1.5}])
    state.add(other)

    with pytest.raises(ValueError, match="the run of 2026-11-24 with seed 3 has been added before"):
        state.add(other)

    assert state.tallies["clock"].counted == 7

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

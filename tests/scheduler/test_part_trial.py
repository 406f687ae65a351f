import itertools
import logging

import pytest

from photonlite.scheduler.part_trial import PartTrial

LATE = "xx"
"""Requests that end a trial: two of sixteen are late."""

_deadlines = itertools.count()


def end(trial: PartTrial, now: float, late: str) -> None:
    """Let requests end, "x" a late one and "." one in time."""
    for one in late:
        trial.note_end(now, 1e9 + next(_deadlines), late=one == "x")


@pytest.mark.parametrize("late", ["x" + "." * 15, "." * 15 + "x", "x" + "." * 30])
def test_a_part_is_kept_while_one_of_sixteen_requests_is_late(late: str) -> None:
    trial = PartTrial()
    end(trial, 0.0, late * 50)

    assert trial.holds(0.0)


@pytest.mark.parametrize("late", [LATE, "." * 99 + LATE, "x.x", "." * 20 + "x" + "." * 14 + "x"])
def test_bulk_images_take_turns_for_a_while_once_more_are_late(late: str, caplog: pytest.LogCaptureFixture) -> None:
    trial = PartTrial()
    with caplog.at_level(logging.WARNING, "photonlite"):
        end(trial, 5.0, late)

    assert not trial.holds(14.9)
    assert trial.holds(15.0)
    (record,) = caplog.records
    assert "late beside bulk images: these take turns for 10 s" in record.getMessage()


def test_a_question_about_many_names_counts_once() -> None:
    trial = PartTrial()
    for late in (False, True, True, False) * 8:
        trial.note_end(0.0, 1.0, late=late)
    assert trial.holds(0.0)
    for late in (False, True):
        trial.note_end(0.0, 2.0, late=late)

    assert not trial.holds(0.0)


@pytest.mark.parametrize("second", [1.0, 1000.0])
@pytest.mark.parametrize(("left_s", "holds"), [(0.003, True), (0.001, False)])
def test_requests_that_are_hardly_in_time_count_as_late(left_s: float, holds: bool, second: float) -> None:
    trial = PartTrial(second)
    for deadline in (1.0 * second, 2.0 * second):
        trial.note_end(deadline - left_s * second, deadline, late=False)

    assert trial.holds(2.0 * second) == holds


def test_questions_that_end_among_one_another_count_once_each() -> None:
    trial = PartTrial()
    for deadline, late in ((1.0, True), (2.0, False), (1.0, True), (2.0, False), (1.0, True)):
        trial.note_end(0.0, deadline, late=late)
    assert trial.holds(0.0)
    trial.note_end(0.0, 2.0, late=True)

    assert not trial.holds(0.0)


def test_each_pause_is_twice_as_long_while_trials_are_brief() -> None:
    trial = PartTrial()
    end(trial, 0.0, LATE)
    end(trial, 19.9, "." * 200 + LATE)  # the trial began at 10
    assert not trial.holds(39.8)
    assert trial.holds(39.9)
    end(trial, 60.0, LATE)

    assert not trial.holds(69.9)
    assert trial.holds(70.0)


def test_pauses_have_an_end() -> None:
    trial, now = PartTrial(), 0.0
    for _ in range(20):
        end(trial, now, LATE)
        now += 640.0
        assert trial.holds(now)


def test_what_ends_in_a_pause_says_nothing_about_the_part() -> None:
    trial = PartTrial()
    end(trial, 0.0, LATE)
    end(trial, 5.0, LATE)

    assert trial.holds(10.0)


def test_times_are_in_the_unit_of_the_clock() -> None:
    trial = PartTrial(1000.0)
    end(trial, 0.0, LATE)

    assert not trial.holds(9_999.0)
    assert trial.holds(10_000.0)

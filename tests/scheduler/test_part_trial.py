import logging

import pytest

from photonlite.scheduler.part_trial import PartTrial


def end(trial: PartTrial, now: float, late: str) -> None:
    """Let requests end, "x" a late one and "." one in time."""
    for one in late:
        trial.note_end(now, late=one == "x")


def test_a_part_is_kept_while_few_requests_are_late() -> None:
    trial = PartTrial()
    end(trial, 0.0, ".x.x.x......xxx....." * 20)

    assert trial.holds(0.0)


def test_bulk_images_take_turns_for_a_while_once_most_were_late(caplog: pytest.LogCaptureFixture) -> None:
    trial = PartTrial()
    with caplog.at_level(logging.WARNING, "photonlite"):
        end(trial, 5.0, "....xx.xx")
        assert trial.holds(5.0)
        end(trial, 5.0, "x")

    assert not trial.holds(14.9)
    assert trial.holds(15.0)
    (record,) = caplog.records
    assert "late beside bulk images: these take turns for 10 s" in record.getMessage()


def test_each_pause_is_twice_as_long_until_requests_are_in_time_again() -> None:
    trial = PartTrial()
    end(trial, 0.0, "xxxx")
    end(trial, 10.0, "xxxx")
    assert not trial.holds(29.9)
    end(trial, 30.0, ".x......." + "." * 8)
    end(trial, 40.0, "xxxx")

    assert not trial.holds(49.9)
    assert trial.holds(50.0)


def test_pauses_have_an_end() -> None:
    trial, now = PartTrial(), 0.0
    for _ in range(20):
        end(trial, now, "xxxx")
        now += 640.0
        assert trial.holds(now)


def test_what_ends_in_a_pause_says_nothing_about_the_part() -> None:
    trial = PartTrial()
    end(trial, 0.0, "xxxx")
    end(trial, 5.0, "xxxxxxxx")

    assert trial.holds(10.0)


def test_times_are_in_the_unit_of_the_clock() -> None:
    trial = PartTrial(1000.0)
    end(trial, 0.0, "xxxx")

    assert not trial.holds(9_999.0)
    assert trial.holds(10_000.0)

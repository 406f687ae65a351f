"""Each trial against a real server, with few cases."""

import math
import random
import time

import pytest

from bench.campaign import clock, compiling, descriptors, disk, images, kills, overload, requests, slow, soak, terms
from bench.campaign.server import Server, ServerError
from bench.campaign.soak import Sample, with_slopes
from bench.campaign.trial import Outcome, Setup

pytestmark = pytest.mark.long


def setup(seconds=600.0):
    return Setup(3, time.monotonic() + seconds)


def few(batches, count):
    """The outcomes of the first batches."""
    outcomes = []
    try:
        for _ in range(count):
            outcomes += next(batches)
    finally:
        batches.close()
    return outcomes


def failures(outcomes):
    return [(outcome.number, outcome.failure) for outcome in outcomes if outcome.failure]


def test_images(monkeypatch):
    monkeypatch.setattr(images, "BATCH", 16)
    outcomes = few(images.run(setup(), 32), 1)
    assert failures(outcomes) == []
    assert [outcome.number for outcome in outcomes] == list(range(32, 48))
    assert outcomes[-1].figures["peak of a decoding process (MB)"] > 10


def test_requests(monkeypatch):
    monkeypatch.setattr(requests, "BATCH", 50)
    outcomes = few(requests.run(setup(), 150), 2)
    assert failures(outcomes) == []
    assert [outcome.number for outcome in outcomes][:50] == list(range(150, 200))
    counts = [set(outcome.counts) & {"mutated", "schemathesis"} for outcome in outcomes]
    assert counts[:50] == [{"mutated"}] * 50
    assert counts[50:]
    assert all(kind == {"schemathesis"} for kind in counts[50:])


def test_slow_connections():
    outcomes = few(slow.batches(setup(), 0, 20), 1)
    assert failures(outcomes) == []
    assert len(outcomes) == 20
    assert {status for outcome in outcomes for status in outcome.counts} >= {"408"}


def test_overload():
    [outcome] = few(overload.rounds(setup(), 0, 1.5), 1)
    assert outcome.failure == "" or "p99" in outcome.failure or "goodput" in outcome.failure  # with seconds so few
    assert outcome.counts["status 200"] > 0
    assert outcome.counts["status 429"] > 0


def test_kills():
    outcomes = few(kills.run(setup(), 0), 3)
    # Times hold for a machine that others leave alone.
    assert [line for _, line in failures(outcomes) if "no answer for" not in line and "knew only" not in line] == []
    assert [kind for outcome in outcomes for kind in outcome.counts if kind in kills.KINDS] == list(kills.KINDS)


def test_terms():
    [outcome] = few(terms.run(setup(), 0), 1)
    assert outcome.failure == ""
    assert outcome.counts["open at the signal, accepted"] > 0


@pytest.mark.parametrize("number", [1, 2])
def test_disk(number):
    [outcome] = few(disk.run(setup(), number), 1)
    assert outcome.failure == ""
    assert outcome.counts[disk.KINDS[number]] == 1


def test_descriptors():
    outcomes = few(descriptors.run(setup(), 0), 2)
    assert failures(outcomes) == []
    assert all(outcome.counts["over connections from before: 200"] >= 4 for outcome in outcomes)


def test_clock():
    outcomes = few(clock.run(setup(), 0), 2)
    assert failures(outcomes) == []
    assert all(outcome.counts["status 429"] > 0 for outcome in outcomes)


def test_compiling():
    [outcome] = few(compiling.times(setup(), 0, 3.0, 2.0), 1)
    assert outcome.failure == ""
    assert outcome.figures["answered after (s)"] >= 3


def test_compiling_for_longer_than_the_limit_is_an_alarm():
    [outcome] = few(compiling.times(setup(), 0, 12.0, 0.5), 1)
    assert "alarms" in outcome.failure


def test_soak():
    outcomes = list(soak.minutes(setup(30.0), 0, 0.2, 3.0))
    assert failures([outcome for [outcome] in outcomes]) == []
    assert outcomes[-1][0].figures["alarms of the watchdog"] == 0
    assert "memory (MB an hour)" in outcomes[-1][0].figures


def test_a_soak_without_a_limit_ends_with_its_aim_and_its_slopes(monkeypatch):
    monkeypatch.setattr(soak, "AIM", 2)

    outcomes = list(soak.minutes(setup(math.inf), 7, 0.2, 3.0))

    assert [outcome.number for [outcome] in outcomes] == [7, 8]
    assert "memory (MB an hour)" in outcomes[-1][0].figures


def test_a_server_that_does_not_start_is_an_error():
    with (
        pytest.raises(ServerError, match=r"did not start .exit code 2.*no-such-flag"),
        Server(setup(), "--no-such-flag"),
    ):
        pass


def test_a_kill_is_a_restart_in_the_log():
    with Server(setup(), "--image-workers", "1", "--no-check") as server:
        assert server.restarts() == ""
        server.serving.kill()
        assert server.ready().status == 200
        assert "signal (137)" in server.restarts()
        assert server.stop() == 0


@pytest.mark.parametrize(("an_hour", "hours", "fails"), [(0.0, 1.0, False), (100.0, 1.0, True), (100.0, 0.2, False)])
def test_a_leak_fails_a_soak_that_is_long_enough(an_hour, hours, fails):
    chance = random.Random(0)
    times = [hours * index / 100 for index in range(101)]
    samples = [Sample(one, 900 + an_hour * one + chance.gauss(0, 1), 60, 50) for one in times]

    outcome = with_slopes(Outcome(9), samples)

    assert ("memory (MB an hour)" in outcome.failure) == fails
    assert outcome.figures["memory (MB an hour)"] == pytest.approx(an_hour, abs=15)

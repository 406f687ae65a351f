import argparse
import asyncio
import itertools

import pytest

from bench.serve import subject
from photonlite.results import Metrics


def test_a_closed_loop_keeps_so_many_open_and_counts_behind_the_first_answers(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("bench.serve.subject.time.perf_counter", lambda: 1e-3 * next(ticks))
    open_now, most, asked = 0, 0, []

    async def ask(image):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        asked.append(image)
        await asyncio.sleep(0)
        open_now -= 1

    found = asyncio.run(subject.closed_loop(ask, map(str, itertools.count()), clients=3, seconds=0.05))
    assert most == 3
    assert len(set(asked)) == len(asked)
    assert 0 < found["rate"] <= len(asked) / 0.01
    assert 0 < found["p50_s"] < 0.05


def test_a_closed_loop_that_is_slow_goes_on_until_it_has_some_answers():
    asked = []

    async def ask(image):
        asked.append(image)
        await asyncio.sleep(0)

    found = asyncio.run(subject.closed_loop(ask, itertools.repeat(b""), clients=4, seconds=1e-9))
    assert len(asked) >= 12
    assert found["rate"] > 0


def test_the_hand_over_is_what_a_call_takes_beyond_the_engine():
    async def ask(image):
        return Metrics(time_to_first_token_s=-5.0, decode_s=-2.0)

    rest = asyncio.run(subject.hand_over(ask, itertools.repeat(b""), times=5, pause_s=0.0))
    assert 7.0 < rest < 7.5


@pytest.mark.long
def test_the_baseline_asks_the_model_itself():
    options = argparse.Namespace(
        device="cpu", shape="tiny", size=(64, 48), clients=2, skills=["detect", "query"], seconds=0.2, pause=0.0
    )
    with subject.load(options) as model:
        found = asyncio.run(subject.baseline(model, options))
    assert set(found["in_process"]) == {"detect", "query"}
    assert all(one["rate"] > 0 and one["p50_s"] > 0 for one in found["in_process"].values())
    assert found["hand_over_s"] > 0
    assert found["model"] == "random weights, float32"

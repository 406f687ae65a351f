import re
from collections import Counter

import pytest

from photonlite.scheduler.fifo import FifoPolicy
from photonlite.scheduler.queues import EncoderQueue
from photonlite.scheduler.realtime import RealtimePolicy
from tests.simulation.__main__ import run_many
from tests.simulation.simulator import Simulation

TICKS = 125_000

AT_LEAST = {
    "adapters loaded": 2_000,
    "answered": 50_000,
    "answers without any choice": 2_000,
    "answers without any choice, about an image": 1_000,
    "batches of more than 8 rows": 1_000,
    "bulk images in their part": 800,
    "bulk images take turns as real-time requests were late": 500,
    "bulk prompts in their part": 80,
    "bulk's turns": 2_000,
    "budgets above the allocation": 20_000,
    "budgets below the allocation": 20_000,
    "calm runs with a cache": 60,
    "cancelled after its end": 100,
    "cancelled after pre-emption": 8,
    "cancelled as a zombie": 200,
    "cancelled while cutting": 200,
    "cancelled while decoding": 1_000,
    "cancelled while encoded beside others": 150,
    "cancelled while encoding": 200,
    "cancelled while pre-empted": 5,
    "cancelled while prefilling": 200,
    "cancelled while swapped or returning": 5,
    "cancelled while waiting": 1_000,
    "copies of pages that failed": 50,
    "decode steps of real-time requests alone": 10_000,
    "decode steps that left sequences out": 3_000,
    "decode in depth 1": 20_000,
    "decode in depth 2": 100_000,
    "died": 50,
    "encode beside others": 20_000,
    "encode in depth 1": 3_000,
    "encode in depth 2": 13_000,
    "encode steps of several images": 500,
    "ended by AdapterFailure": 200,
    "ended by DeadlineError": 500,
    "ended by EngineDiedError": 100,
    "ended by GrammarFault": 1_000,
    "ended by HostileFault": 2_000,
    "ended by NumericalError": 100,
    "ended by OutOfMemoryError": 100,
    "ended by ImageFailure": 300,
    "ended by RequestCancelledError": 5_000,
    "ended by StepError": 2_000,
    "ended by ValueError": 500,
    "evictions": 20_000,
    "failed collect": 100,
    "failed decode": 100,
    "failed download": 100,
    "failed encode": 100,
    "failed finalize": 100,
    "failed launch": 100,
    "failed padded": 100,
    "failed prefill": 100,
    "failed upload": 100,
    "images dropped while encoded beside others": 200,
    "images encoded in a part": 600,
    "images encoded in turns": 10_000,
    "images encoded with adapters": 5_000,
    "launches beside a part": 2_000,
    "launches beside an encode step": 20_000,
    "prefill beside others": 50,
    "launches of several adapters": 1_500,
    "launches with and without adapters": 2_000,
    "memory was short": 300,
    "mixed in depth 1": 2_000,
    "mixed in depth 2": 8_000,
    "NaNs in decode": 100,
    "NaNs in prefill": 50,
    "further requests": 10_000,
    "hits of whole prompts": 500,
    "given up before their deadlines": 30,
    "launches over a step in flight": 200_000,
    "launches that overtook bulk work": 30_000,
    "launches while pages move": 5_000,
    "padding rows": 10_000,
    "page copies": 5_000,
    "page saves": 2_000,
    "parts of prompts": 10_000,
    "parts of runs": 100,
    "pages of the cache that need not come in": 300,
    "images encoded in several steps": 10_000,
    "pre-emptions": 1_000,
    "prefill in depth 1": 10_000,
    "prefill in depth 2": 20_000,
    "prefix hits": 20_000,
    "prefix hits of tenants": 10_000,
    "real-time images beside the part": 300,
    "refused": 500,
    "refused for raising": 500,
    "runner/sampling_params.py _heads": 100,
    "rows of real-time sequences": 100_000,
    "run in depth 1": 200,
    "run in depth 2": 600,
    "runs that did not follow": 3_000,
    "runs that followed as assumed": 1_500,
    "tokens of runs": 8_000,
    "rows of the pre-empted": 500,
    "rows that rode with prompts": 20_000,
    "sampled after it": 50_000,
    "swapped in": 800,
    "swapped out": 800,
    "sampled before the last commit": 50_000,
    "images restored": 100,
    "restored pages behind others": 8,
    "restored pages of several images": 200,
    "restored pages, some shared": 16,
    "stored pages": 100,
    "stored images that could not be read": 100,
    "ticks in which slots were waited for": 50_000,
    "ticks in which the device was kept idle": 2_000,
    "turns of bulk images beside others": 300,
    "two encode steps beside others": 10_000,
    "two steps failed in a row": 50,
    "uncut images": 10_000,
    "uncut images together in a launch": 50,
    "zombie rows": 10_000,
}
"""Events that a million ticks must contain, so that the simulation keeps its coverage: a fraction of today's."""


def test_five_thousand_ticks_keep_every_invariant() -> None:
    seen, failure = run_many(0, 1, 5_000)

    assert failure is None, failure
    assert seen["answered"] > 250


# Half a million ticks, in parts for several cores; the fast test has taken the first seeds.
@pytest.mark.long(first=True)
@pytest.mark.parametrize("seed", [1_000, 1_000_000, 2_000_000, 3_000_000])
def test_an_eighth_of_a_million_ticks_keep_every_invariant_and_see_everything(seed: int) -> None:
    seen, failure = run_many(seed, 1, TICKS)

    check_all_seen(seen, failure, TICKS)


def check_all_seen(seen: Counter[str], failure: str | None, ticks: int) -> None:
    assert failure is None, failure
    assert seen["ticks"] >= ticks
    too_seldom = {what: seen[what] for what, count in AT_LEAST.items() if seen[what] < count * ticks // 1_000_000}
    assert not too_seldom


def trace(seed: int, policy: type[FifoPolicy] | None = None) -> list[str]:
    lines: list[str] = []
    Simulation(seed, lines.append, policy=policy).run()
    return lines


@pytest.mark.parametrize("seed", range(4))
def test_without_realtime_requests_both_policies_do_the_same(seed: int) -> None:
    assert trace(seed, FifoPolicy) == trace(seed, RealtimePolicy)


@pytest.mark.long
def test_first_come_first_served_keeps_every_invariant() -> None:
    seen, failure = run_many(500_000, 1, 4_000, FifoPolicy)

    assert failure is None, failure
    assert seen["answered"] > 200
    assert not seen["rows of real-time sequences"]


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_replays_line_by_line(seed: int) -> None:
    lines = trace(seed)

    assert len(lines) > 100
    assert trace(seed) == lines


@pytest.mark.long
def test_a_failure_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EncoderQueue, "drop_idle", lambda self, find_heir: [])

    _, failure = run_many(0, 1, 20_000)

    assert failure is not None
    seed = int(failure.split("python -m tests.simulation ")[1].split()[0])
    _, again = run_many(seed, 1, 1)
    assert again is not None
    assert re.sub("0x[0-9a-f]+", "", again) == re.sub("0x[0-9a-f]+", "", failure)

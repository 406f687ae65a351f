"""Jumps of the wall clock by an hour in both directions, under load: nothing fails, and no limit of rate breaks."""

import json
import random
import time
from functools import partial
from typing import Final

from bench.campaign.client import Ask, Load, ask, chances, fault, json_ask, query, statuses
from bench.campaign.hooked import Hooks
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial

JUMP_S: Final = 3600.0
RATE: Final = 20  # requests a minute of each caller
_FLAGS: Final = ("--image-workers", "1", "--max-tokens", "16", "--requests-per-minute", str(RATE))


def run(setup: Setup, first: int) -> Batches:
    with Hooks() as hooks, Server(setup, *_FLAGS, environment=hooks.environment) as server:
        wall = -1.0
        with Load(server.port, partial(_request, setup.seed), 2, source=_address, pause_s=0.02) as load:
            for number, chance in chances(setup.seed, "clock", first):
                outcome = jump(server, hooks, load, number, chance, wall)
                wall = -wall
                yield [outcome]


def jump(server: Server, hooks: Hooks, load: Load, number: int, chance: random.Random, sign: float) -> Outcome:
    """Use up a caller's rate, shift the clock, and see that the rate is still used up."""
    caller = f"127.2.{number // 250 % 250}.{number % 250 + 1}"
    load.drain()
    begun = time.perf_counter()
    used = [ask(server.port, query(chance, 1), source=caller) for _ in range(RATE)]
    shift = sign * chance.uniform(0.5, 1.0) * JUMP_S
    hooks.tell(shift_s=shift)
    time.sleep(chance.uniform(0, 0.3))
    more = [ask(server.port, query(chance, 1), source=caller) for _ in range(RATE)]
    allowed = RATE + (time.perf_counter() - begun) * RATE / 60 + 1
    granted = sum(one.status == 200 for one in (*used, *more))
    wrong = [f"{granted} requests were granted, more than {allowed:.0f}"] if granted > allowed else []
    wrong += [f"only {granted} requests were granted"] if granted < RATE else []
    beside = load.drain()
    wrong += [f"requests beside it: {statuses(beside)}"] if any(one.status != 200 for one in beside) else []
    wrong += [line for line in map(fault, more) if line]
    created = _created(server, f"127.3.{number // 250 % 250}.{number % 250 + 1}")
    wrong += [f"the clock of the server is at {created}"] if abs(created - time.time() - shift) > 5 else []
    wrong += [server.restarts()]
    counts = {f"status {status}": count for status, count in statuses((*used, *more, *beside)).items()}
    slowest = max((one.seconds for one in beside), default=0.0)
    return Outcome(number, "; ".join(list(filter(None, wrong))[:4]), {"slowest answer beside it (s)": slowest}, counts)


def _created(server: Server, source: str) -> float:
    """Return the time that the server writes on an answer, 0 without one: it shows that the clock was shifted."""
    messages = [{"role": "user", "content": "How many?"}]
    answer = ask(server.port, json_ask("/v1/chat/completions", messages=messages, max_tokens=1), source=source)
    return float(json.loads(answer.body)["created"]) if answer.status == 200 else 0.0


def _request(seed: int, number: int) -> Ask:
    return query(random.Random(f"clock {seed} {number}"))


def _address(number: int) -> str:
    """Return another address for each request: the rate of none is used up."""
    return f"127.1.{number // 250 % 250}.{number % 250 + 1}"


TRIAL = Trial(
    "clock",
    "jumps of the wall clock by half an hour to an hour, back and forth",
    200,
    "a request beside it fails; a caller whose rate is used up gets more, or less; the serving process ends",
    run,
)

"""Ten times as many requests as can be answered: refusals come at once, and goodput stays near its peak."""

import asyncio
import json
import os
import random
import time
from typing import Final, NamedTuple

import numpy as np

from bench.campaign.client import HOST, JSON, chances
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial
from bench.serve.load import arrivals
from bench.serve.wire import Client, Reply

FACTOR: Final = 10
REFUSAL_S: Final = 0.1
GOODPUT: Final = 0.9
TOKENS: Final = 96  # an answer must take the engine long enough that ten times as many requests cost a client little
_CLIENTS: Final = 16
_MAX_OPEN: Final = 32
_SETTLE_S: Final = 2.0
_LEVEL_S: Final = 30.0  # answers come in batches: in ten seconds one more of them is a tenth
_IDLE_LOAD: Final = 0.5  # load average for each core up to which a machine counts as idle


class Level(NamedTuple):
    """Answers a second, and seconds of refusals at the 99th percentile."""

    goodput: float
    refusal_s: float
    statuses: dict[str, int]
    wrong: list[str]


def run(setup: Setup, first: int) -> Batches:
    yield from rounds(setup, first, _LEVEL_S)


def rounds(setup: Setup, first: int, seconds: float) -> Batches:
    """Measure peak and overload for so many seconds each, round by round."""
    flags = ("--max-open", str(_MAX_OPEN), "--image-workers", "1", "--deadline-seconds", "20")
    with Server(setup, *flags) as server:
        asyncio.run(_closed(server.port, random.Random(0), seconds))  # the server learns what answers cost
        for number, chance in chances(setup.seed, "overload", first):
            busy = os.getloadavg()[0] / (os.cpu_count() or 1)
            peak = asyncio.run(_closed(server.port, chance, seconds))
            # At least twice what may be open: a machine may be so busy that nothing was answered in time.
            rate = max(FACTOR * peak.goodput, 2 * _MAX_OPEN / seconds)
            over = asyncio.run(_open(server.port, chance, rate, seconds))
            yield [_judged(number, peak, over, busy, server.restarts())]


def request(chance: random.Random) -> bytes:
    body = json.dumps({"question": f"{chance.randrange(10**9)}?", "settings": {"max_tokens": TOKENS}}).encode()
    return (
        b"POST /v1/query HTTP/1.1\r\nHost: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        % (HOST.encode(), JSON.encode(), len(body))
        + body
    )


async def _closed(port: int, chance: random.Random, seconds: float) -> Level:
    """Ask from clients that wait for their answers."""
    client, replies = Client(HOST, port), list[Reply]()
    begun = time.perf_counter()

    async def one() -> None:
        while time.perf_counter() - begun < _SETTLE_S + seconds:
            replies.append(await client.ask(request(chance)))

    await asyncio.gather(*(one() for _ in range(_CLIENTS)))
    client.close()
    return _level(replies, begun, seconds)


async def _open(port: int, chance: random.Random, rate: float, seconds: float) -> Level:
    """Ask at a rate, whether answers come or not."""
    client, replies = Client(HOST, port), list[Reply]()
    begun = time.perf_counter()

    async def one() -> None:
        replies.append(await client.ask(request(chance)))

    async with asyncio.TaskGroup() as group:
        for due in arrivals(rate, _SETTLE_S + seconds, chance.randrange(2**32)):
            if (wait := begun + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(one())
    client.close()
    return _level(replies, begun, seconds)


def _level(replies: list[Reply], begun: float, seconds: float) -> Level:
    counted: dict[str, int] = {}
    for reply in replies:
        counted[str(reply.status or "broken")] = counted.get(str(reply.status or "broken"), 0) + 1
    ends = [reply.ended - begun for reply in replies if reply.status == 200]
    goodput = sum(_SETTLE_S <= end < _SETTLE_S + seconds for end in ends) / seconds
    refused = [reply.ended - reply.began for reply in replies if reply.status in (429, 503)]
    wrong = [f"{count} x {status}" for status, count in counted.items() if status not in ("200", "429", "503", "504")]
    return Level(goodput, float(np.quantile(refused, 0.99)) if refused else 0.0, counted, wrong)


def _judged(number: int, peak: Level, over: Level, busy: float, restarts: str) -> Outcome:
    """Judge a round; times are judged only where the machine was idle before it."""
    share = over.goodput / peak.goodput if peak.goodput else 0.0
    wrong = [*peak.wrong, *over.wrong, restarts]
    if busy <= _IDLE_LOAD:
        wrong.append(f"goodput fell to {share:.0%} of its peak" if share < GOODPUT else "")
        wrong.append(f"refusals took {1000 * over.refusal_s:.0f} ms" if over.refusal_s > REFUSAL_S else "")
    kind = "idle" if busy <= _IDLE_LOAD else "busy"
    figures = {
        f"refusal, p99, {kind} machine (ms)": 1000 * over.refusal_s,
        f"goodput lost of its peak, {kind} machine (%)": 100 * (1 - share),
        "load average for each core before it": busy,
    }
    counts = {f"status {status}": count for status, count in over.statuses.items()}
    return Outcome(number, "; ".join(filter(None, wrong)), figures, counts | {f"{kind} rounds": 1})


TRIAL = Trial(
    "overload",
    f"rounds of {FACTOR} x overload",
    20,
    f"an answer other than 200, 429, 503, 504; on an idle machine also goodput below {GOODPUT:.0%} of its peak, or "
    f"refusals that take more than {1000 * REFUSAL_S:.0f} ms (p99)",
    run,
)

"""Hours of a mild mixed load: memory, descriptors and threads do not grow, and the watchdog raises no alarm."""

import contextlib
import math
import random
import socket
import threading
import time
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import psutil

from bench.campaign.client import HOST, Ask, Load, chances, fault, json_ask, query, statuses, typed_query
from bench.campaign.image_mutations import MEDIA_TYPES, mutate
from bench.campaign.images import request as image_request
from bench.campaign.server import Server
from bench.campaign.slope import Slope, slope
from bench.campaign.trial import Batches, Outcome, Setup, Trial

AIM: Final = 120  # minutes
SAMPLED_S: Final = 10.0
WARM_UP: Final = 0.25  # share of the run that does not count: caches fill
JUDGED_HOURS: Final = 0.5  # a shorter run is all warm-up: its slopes are reported, and not judged
NEGLIGIBLE: Final = {"memory (MB an hour)": 8.0, "descriptors (an hour)": 1.0, "threads (an hour)": 1.0}
_MINUTE_S: Final = 60.0
_STOPPING_S: Final = 20.0  # left for the end of the server
_LEAST: Final = 8  # samples that a slope needs
# Caches that fill within the warm-up: growth after it is a leak.
_CACHES: Final = ("grammar_cache_bytes=200000", "kv_cache_bytes=8000000")
_FLAGS: Final = (
    *("--image-workers", "2", "--max-tokens", "32", "--max-pixels", "1000000"),
    *(word for name in _CACHES for word in ("--engine", name)),
)


class Sample(NamedTuple):
    """What all processes of a server hold together; the time is in hours."""

    hours: float
    memory: float  # resident, MB
    descriptors: float
    threads: float


def run(setup: Setup, first: int) -> Batches:
    yield from minutes(setup, first, SAMPLED_S, _MINUTE_S)


def minutes(setup: Setup, first: int, sampled_s: float, minute_s: float) -> Batches:
    """Soak until the time is over, or for `AIM` minutes where there is no limit; the last outcome has the slopes."""
    with Server(setup, *_FLAGS) as server:
        load = Load(server.port, partial(_request, setup.seed), 3, pause_s=0.15)
        leaver = threading.Event()
        leaving = threading.Thread(target=_leave, args=(server.port, leaver), daemon=True)
        leaving.start()
        with load:
            begun = time.monotonic()
            samples: list[Sample] = []
            for number, _ in chances(setup.seed, "soak", first):
                until = time.monotonic() + minute_s
                while time.monotonic() < until:
                    time.sleep(sampled_s)
                    samples.append(sample(server, (time.monotonic() - begun) / 3600))
                last = setup.left_s < minute_s + _STOPPING_S
                last = last or (math.isinf(setup.left_s) and number - first + 1 == AIM)
                outcome = _judged(server, load, number)
                if last:
                    outcome = with_slopes(outcome, samples)
                yield [outcome]
                if last:
                    break
        leaver.set()
        leaving.join()


def sample(server: Server, hours: float) -> Sample:
    memory = descriptors = threads = 0
    for process in server.family:
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            memory += process.memory_info().rss
            descriptors += process.num_fds()
            threads += process.num_threads()
    return Sample(hours, memory / 1e6, descriptors, threads)


def slopes(samples: list[Sample]) -> dict[str, Slope]:
    """Return the slopes of what must not grow, after the warm-up."""
    counted = np.array([one for one in samples if one.hours >= WARM_UP * samples[-1].hours])
    return {name: slope(counted[:, 0], counted[:, index]) for index, name in enumerate(NEGLIGIBLE, 1)}


def with_slopes(outcome: Outcome, samples: list[Sample]) -> Outcome:
    """Judge the whole run at its last minute; a run that is too short has no slopes."""
    figures, wrong = dict(outcome.figures), [outcome.failure] if outcome.failure else []
    if len(samples) * (1 - WARM_UP) > _LEAST:
        for name, found in slopes(samples).items():
            figures |= {name: found.value, f"{name}: low end": found.low, f"{name}: high end": found.high}
            if samples[-1].hours >= JUDGED_HOURS and not found.is_flat(NEGLIGIBLE[name]):
                wrong.append(f"{name}: {found.value:+.2f}, from {found.low:+.2f} to {found.high:+.2f}")
    return outcome._replace(failure="; ".join(wrong), figures=figures)


def _judged(server: Server, load: Load, number: int) -> Outcome:
    answers = load.drain()
    wrong = [line for line in map(fault, answers) if line]
    alarms = len(server.events("hung"))
    wrong += [f"{alarms} alarms of the watchdog"] if alarms else []
    wrong += [server.restarts()]
    counts = {f"status {status}": count for status, count in statuses(answers).items()}
    figures = {"alarms of the watchdog": float(alarms), "slowest answer (s)": max(one.seconds for one in answers)}
    return Outcome(number, "; ".join(list(filter(None, wrong))[:4]), figures, counts)


def _request(seed: int, number: int) -> Ask:
    """Return a request of a kind that changes with the number; no two are the same."""
    chance = random.Random(f"soak {seed} {number}")
    match number % 6:
        case 0:
            return query(chance, 32, stream=True)
        case 1:
            return image_request(mutate(number // 6, chance), chance)
        case 2:
            return typed_query(chance)
        case 3:
            return json_ask("/v1/query", question=chance.randrange(10**6))  # a text was expected
        case 4:
            image = mutate(number // 6, chance)
            return Ask('/v1/query?question=why&settings={"max_tokens":4}', image.data, MEDIA_TYPES[image.format])
    return query(chance, 32)


def _leave(port: int, over: threading.Event) -> None:
    """Be clients that leave without waiting for their answer."""
    body = b'{"question": "How many?", "settings": {"max_tokens": 32}}'
    head = b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    while not over.wait(0.5):
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)) as connection:
            connection.sendall(head % len(body) + body)
            over.wait(0.02)


TRIAL = Trial(
    "soak",
    "minutes of a soak without a break",
    AIM,
    "a wrong answer; an alarm of the watchdog; behind the first quarter of a run of at least half an hour, a slope of "
    "resident memory, descriptors or threads of all processes whose interval of 95 % lies above 0 and that exceeds "
    + ", ".join(f"{name}: {most:g}" for name, most in NEGLIGIBLE.items()),
    run,
    adds_up=False,
)

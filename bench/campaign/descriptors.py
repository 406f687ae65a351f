"""File descriptors run out: connections wait or are refused, and the server comes back without a restart."""

import contextlib
import http.client
import os
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psutil

from bench.campaign.client import HOST, Answer, Ask, ask, ask_over, chances, fault, query, statuses
from bench.campaign.image_mutations import originals
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial

_CONNECTIONS: Final = 64
_MOST_SPARE: Final = 32
_FEW: Final = 8  # with fewer to spare, nothing has to be answered before there are more
_BACK_S: Final = 15.0  # asyncio tries to accept once a second
_KEPT: Final = 8  # connections from before, over which requests come meanwhile
_FLAGS: Final = ("--image-workers", "2", "--max-tokens", "64")


def run(setup: Setup, first: int) -> Batches:
    with Server(setup, *_FLAGS) as server, ThreadPoolExecutor(_KEPT) as pool:
        pid = server.serving.pid
        for number, chance in chances(setup.seed, "descriptors", first):
            outcome = exhaust(server, pool, number, chance)
            if (now := server.serving.pid) != pid:
                outcome, pid = outcome._replace(failure=f"{outcome.failure} {server.restarts()}"), now
            yield [outcome]


def exhaust(server: Server, pool: ThreadPoolExecutor, number: int, chance: random.Random) -> Outcome:
    """Leave the serving process a few descriptors and take them; every second time an image worker is killed, too."""
    serving = server.serving
    before = serving.rlimit(psutil.RLIMIT_NOFILE)
    spare = chance.randrange(_MOST_SPARE)
    with contextlib.ExitStack() as open_ones:
        kept = [open_ones.enter_context(contextlib.closing(_connected(server))) for _ in range(_KEPT)]
        open_ones.callback(_allow, serving, before)
        _allow(serving, (_highest(serving.pid) + 1 + spare, before[1]))
        idle = [socket.create_connection((HOST, server.port), timeout=_BACK_S) for _ in range(_CONNECTIONS)]
        for connection in idle:
            open_ones.enter_context(connection)
        if number % 2:
            for worker in server.workers("image")[:1]:
                worker.kill()
        during = list(pool.map(ask_over, kept, _requests(chance)))
        beyond = ask(server.port, query(chance), timeout=1.0)
        for connection in idle:
            connection.close()
        scarce, waited = _until_answered(server, query(chance)) if spare >= _FEW else (None, 0.0)
    image, again = _until_answered(server, _about_image(chance))
    wrong = [f"over connections from before: {line}" for line in map(fault, during) if line]
    wrong += [f"over connections from before: {one.status}" for one in during[1::2] if one.status != 200]
    wrong += [f"after the others left: {scarce.status} {scarce.code}"] if scarce and scarce.status != 200 else []
    wrong += [f"an image afterwards: {image.status} {image.code}"] if image.status != 200 else []
    counts = {f"over connections from before: {status}": count for status, count in statuses(during).items()}
    counts |= {f"a new connection: {beyond.status or 'no answer within 1 s'}": 1}
    figures = {"answered again with few (s)": waited, "an image answered again (s)": again}
    return Outcome(number, "; ".join(wrong[:4]), figures, counts)


def _connected(server: Server) -> http.client.HTTPConnection:
    """Return a connection that has had an answer, and is kept."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=_BACK_S)
    ask_over(connection, Ask("/health"))
    return connection


def _allow(process: psutil.Process, limits: tuple[int, int]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.rlimit(psutil.RLIMIT_NOFILE, limits)


def _highest(pid: int) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


def _until_answered(server: Server, request: Ask) -> tuple[Answer, float]:
    begun = time.perf_counter()
    while True:
        answer = ask(server.port, request, timeout=_BACK_S)
        if answer.status == 200 or time.perf_counter() - begun > _BACK_S:
            return answer, time.perf_counter() - begun
        time.sleep(0.1)


def _requests(chance: random.Random) -> list[Ask]:
    """Return images, which need descriptors, and questions, which need none, in turns."""
    return [query(chance, 2) if index % 2 else _about_image(chance) for index in range(_KEPT)]


def _about_image(chance: random.Random) -> Ask:
    return Ask('/v1/query?question=why&settings={"max_tokens":1}', chance.choice(originals("jpeg")), "image/jpeg")


TRIAL = Trial(
    "descriptors",
    f"times without descriptors (up to {_MOST_SPARE - 1} left, {_CONNECTIONS} connections)",
    100,
    "over connections from before: a question that is not answered, an image with neither an answer nor a typed error; "
    f"no answer within {_BACK_S:g} s after the others have left, with {_FEW} descriptors (`RLIMIT_NOFILE`) or more; "
    "the serving process ends",
    run,
)

"""A thousand slow connections at once; each is ended by its deadline, and others are answered meanwhile."""

import asyncio
import contextlib
import random
import threading
import time
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from bench.campaign.client import HOST, Ask, Load, chances, fault, query
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial

BATCH: Final = 1000
HEADER_S: Final = 2.0
BODY_S: Final = 3.0
LONGEST_S: Final = 15.0  # of a connection: on a busy machine a thousand of them take their time
KINDS: Final = ("silent", "head byte by byte", "body byte by byte", "body missing", "second request missing")
_OPENED_S: Final = 1.0  # in which all connections are opened
_OTHERS: Final = "127.0.0.2"  # address of clients who are not slow
_BODY: Final = b'{"question": "How many?", "settings": {"max_tokens": 1}}'


class Ended(NamedTuple):
    """How a slow connection ended: status of the last answer, and seconds until the server closed it."""

    status: str
    seconds: float


def run(setup: Setup, first: int) -> Batches:
    yield from batches(setup, first, BATCH)


def batches(setup: Setup, first: int, size: int) -> Batches:
    flags = ("--header-timeout-seconds", str(HEADER_S), "--body-timeout-seconds", str(BODY_S), "--image-workers", "1")
    with Server(setup, *flags) as server:
        cases = chances(setup.seed, "slow", first)
        before = server.serving.num_fds()
        while True:
            drawn = list(islice(cases, size))
            make = partial(_question, setup.seed)
            with Load(server.port, make, 2, source=lambda _: _OTHERS, pause_s=0.05) as others:
                ended = asyncio.run(_all(server.port, [chance for _, chance in drawn]))
            outcomes = [_judged(number, one) for (number, _), one in zip(drawn, ended, strict=True)]
            faults = [line for line in map(fault, others.answers) if line]
            if (left := _descriptors_left(server, before)) > 0:
                faults.append(f"{left} descriptors are left")
            slowest = max(answer.seconds for answer in others.answers)
            figures = {**outcomes[-1].figures, "slowest answer to others (s)": slowest}
            line = "; ".join(filter(None, (outcomes[-1].failure, *faults[:3], server.restarts())))
            outcomes[-1] = outcomes[-1]._replace(failure=line, figures=figures)
            yield outcomes


def _question(seed: int, number: int) -> Ask:
    return query(random.Random(f"slow {seed} {number}"), 1)


def _descriptors_left(server: Server, before: int) -> int:
    """Return how many more descriptors than before are open, once those of ended connections have had a moment."""
    until = time.monotonic() + 5.0
    pause = threading.Event()
    while (left := server.serving.num_fds() - before) > 0 and time.monotonic() < until:
        pause.wait(0.05)
    return left


async def _all(port: int, cases: list[random.Random]) -> list[Ended]:
    return list(await asyncio.gather(*(_slow(port, chance, index) for index, chance in enumerate(cases))))


async def _slow(port: int, chance: random.Random, index: int) -> Ended:
    """Be slow in the way of an index until the server has had enough."""
    await asyncio.sleep(chance.uniform(0, _OPENED_S))
    begun = time.perf_counter()
    kind = KINDS[index % len(KINDS)]
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return Ended("refused", time.perf_counter() - begun)
    dripping = asyncio.create_task(_drip(writer, kind, chance))
    data = b""
    try:
        async with asyncio.timeout(LONGEST_S):
            while piece := await reader.read(65536):
                data += piece
    except (OSError, TimeoutError) as error:
        if isinstance(error, TimeoutError):
            return Ended("left open", LONGEST_S)
    finally:
        dripping.cancel()
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await dripping
    last = data[data.rfind(b"HTTP/1.1 ") :][9:12].decode("latin-1")
    return Ended(last or "closed", time.perf_counter() - begun)


async def _drip(writer: asyncio.StreamWriter, kind: str, chance: random.Random) -> None:
    head = b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    request = head % len(_BODY) + _BODY
    whole = {"silent": 0, "head byte by byte": 10, "second request missing": len(request)}
    sent = whole.get(kind, len(request) - len(_BODY))
    with contextlib.suppress(OSError):
        writer.write(request[:sent])
        while kind.endswith("byte by byte") and sent < len(request):
            await asyncio.sleep(chance.uniform(0.3, 0.6))
            writer.write(request[sent : sent + 1])
            await writer.drain()
            sent += 1


def _judged(number: int, ended: Ended) -> Outcome:
    wrong = f"a slow connection is {ended.status} after {ended.seconds:.0f} s" if ended.status == "left open" else ""
    if ended.status.startswith("5") and ended.status not in ("503", "504"):
        wrong = f"a slow connection got {ended.status}"
    return Outcome(number, wrong, {"longest slow connection (s)": ended.seconds}, {ended.status: 1})


TRIAL = Trial(
    "slow",
    f"slow connections, {BATCH} at once",
    BATCH,
    f"a connection is open after {LONGEST_S:g} s; a 5xx other than 503 and 504; a wrong answer to other "
    "clients; descriptors are left",
    run,
)

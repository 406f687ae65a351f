"""SIGTERM under load: what was accepted is answered, and the exit code is 0."""

import random
import signal
import time
from functools import partial
from typing import Final

from bench.campaign.client import BROKEN, Answer, Ask, Load, chances, fault, query, statuses
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial

_CLIENTS: Final = 8
_ACCEPTED_S: Final = 0.25  # before the signal: a request sent then has been accepted, on a busy machine too
_FLAGS: Final = ("--image-workers", "1", "--max-tokens", "128")


def run(setup: Setup, first: int) -> Batches:
    for number, chance in chances(setup.seed, "terms", first):
        with Server(setup, *_FLAGS) as server:
            yield [terminate(server, number, chance)]


def terminate(server: Server, number: int, chance: random.Random) -> Outcome:
    with Load(server.port, partial(_request, chance.random()), _CLIENTS) as load:
        load.wait(lambda one: one.status == 200)
        time.sleep(_ACCEPTED_S + chance.uniform(0, 1.0))
        signalled = time.perf_counter()
        server.signal(signal.SIGTERM)
        code = server.wait()
        took = time.perf_counter() - signalled
    wrong = [] if code == 0 else [f"exit code {code}: {server.said()}"]
    accepted = [one for one in load.answers if one.begun < signalled - _ACCEPTED_S]
    lost = [one for one in accepted if one.status != 200 or not _is_whole(one)]
    wrong += [f"{len(lost)} accepted requests lost: {statuses(lost)}"] if lost else []
    later = [one for one in load.answers if one.begun >= signalled - _ACCEPTED_S and one.status != BROKEN]
    wrong += [line for line in map(fault, later) if line]
    wrong += ["a later answer is cut short"] * any(one.status == 200 and not _is_whole(one) for one in later)
    unfinished = [line["unfinished"] for line in server.events("stopped")]
    wrong += [] if unfinished == [0] else [f"the log says unfinished: {unfinished}"]
    open_then = sum(one.begun < signalled < one.ended for one in accepted)
    counts = {f"status {status}": count for status, count in statuses(load.answers).items()}
    counts |= {"open at the signal, accepted": open_then}
    return Outcome(number, "; ".join(wrong[:4]), {"signal to exit (s)": took}, counts)


def _request(seed: float, number: int) -> Ask:
    return query(random.Random(f"{seed} {number}"), 128, stream=number % 3 == 0)


def _is_whole(answer: Answer) -> bool:
    """Whether a streamed answer, or an answer at once, has its end."""
    return answer.body.rstrip().endswith(b"}") and b'"finish_reason"' in answer.body


TRIAL = Trial(
    "terms",
    "SIGTERM under load",
    200,
    f"a request sent more than {_ACCEPTED_S:g} s before the signal is not answered whole; an answer after it has "
    "neither 200 nor a code; the exit code is not 0",
    run,
)

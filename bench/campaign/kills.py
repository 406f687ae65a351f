"""kill -9 of the serving process, of an image worker and of a grammar worker in turns, under load."""

import contextlib
import json
import random
import time
from functools import partial
from typing import Final

import psutil

from bench.campaign.client import BROKEN, Answer, Ask, Load, chances, fault, query, statuses, typed_query
from bench.campaign.image_mutations import originals
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial
from photonlite.server.supervisor import delay_s

KINDS: Final = ("serving", "image", "grammar")
_RESTARTS: Final = 3  # of a server, which delays restarts in a row: then comes a new server
_KNOW_S: Final = 1.0
_SPARE_S: Final = 2.0
_DYING_S: Final = 0.1  # in which a killed process may still have accepted a connection
_CLIENTS: Final = 6
_FLAGS: Final = ("--image-workers", "2", "--max-tokens", "64")


def run(setup: Setup, first: int) -> Batches:
    cases = chances(setup.seed, "kills", first)
    slowest_start = 0.0
    while True:
        with Server(setup, *_FLAGS) as server:
            slowest_start = max(slowest_start, server.start_s)
            killed = 0
            while killed < _RESTARTS:
                number, chance = next(cases)
                kind = KINDS[number % len(KINDS)]
                if kind == "serving":
                    killed += 1
                    limit = slowest_start + delay_s(killed) + _SPARE_S
                    yield [kill_serving(server, number, chance, limit)]
                else:
                    yield [kill_worker(server, number, chance, kind)]


def kill_serving(server: Server, number: int, chance: random.Random, limit_s: float) -> Outcome:
    """Kill the serving process; `limit_s` seconds later there have to be answers."""
    seed = chance.random()
    with Load(server.port, partial(_request, seed, "serving"), _CLIENTS) as load:
        load.wait(lambda one: one.status == 200)
        time.sleep(chance.uniform(0, 0.5))
        serving = server.serving
        workers = serving.children()
        killed = time.perf_counter()
        serving.kill()
        ready = server.ready()  # is answered by the next process
        first = load.wait(lambda one: one.status == 200 and one.begun > killed)
    wrong = [f"{statuses(load.answers)}: no answer after the kill"] if first is None else []
    again = (first.ended if first else time.perf_counter()) - killed
    if again > limit_s:
        wrong.append(f"no answer for {again:.1f} s, more than {limit_s:.1f}")
    open_then = [one for one in load.answers if one.begun < killed < one.ended and one.status != 200]
    know = max((one.ended - killed for one in open_then), default=0.0)
    if know > _KNOW_S:
        wrong.append(f"a caller knew only after {know:.1f} s")
    wrong += [line for line in map(fault, load.answers) if line and not line.startswith("the connection broke")]
    late = [one for one in load.answers if one.status == BROKEN and one.begun > killed + _DYING_S]
    wrong += [f"{len(late)} connections made after the kill broke"] if late else []
    after = [one for one in load.answers if first and one.begun > first.ended and one.status != 200]
    wrong += [f"after it: {statuses(after)}"] if after else []
    if (ready.status, _status(ready)) != (200, "ready"):
        wrong.append(f"/ready said {ready.status} {_status(ready)!r} after the kill")
    _, alive = psutil.wait_procs(workers, timeout=5.0)
    wrong += [f"{len(alive)} workers outlived it"] if alive else []
    figures = {"callers know (s)": know, "serving again (s)": again, "start of a server (s)": server.start_s}
    return Outcome(number, "; ".join(wrong[:4]), figures, {"serving": 1, **_counted(load.answers)})


def kill_worker(server: Server, number: int, chance: random.Random, kind: str) -> Outcome:
    """Kill a worker: at most one request may fail, and with 503."""
    with Load(server.port, partial(_request, chance.random(), kind), _CLIENTS) as load:
        load.wait(lambda one: one.status == 200)
        time.sleep(chance.uniform(0, 0.2))
        victims = server.workers(kind)
        killed = time.perf_counter()
        if victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(victims).kill()
        after = load.wait(lambda one: one.status == 200 and one.begun > killed)
    failed = [one for one in load.answers if one.status != 200]
    wrong = [] if victims else [f"there was no {kind} worker to kill"]
    wrong += [f"{len(failed)} requests failed: {statuses(failed)}"] if len(failed) > 1 else []
    wrong += [line for line in map(fault, failed) if line]
    if after is None:
        wrong.append("no answer after the kill")
    wrong.append(server_ended(server))
    figures = {f"answered after the kill of a worker ({kind}, s)": (after.ended if after else killed + 1e3) - killed}
    counts = {kind: 1, **_counted(load.answers), "requests that failed with their worker": len(failed)}
    return Outcome(number, "; ".join(filter(None, wrong)), figures, counts)


def server_ended(server: Server) -> str:
    """Return a line where the serving process ended otherwise than by a kill."""
    reasons = [line["reason"] for line in server.events("restarting") if line["reason"] != "signal"]
    return f"the serving process ended: {reasons}; {server.said()}" if reasons else ""


def _request(seed: float, kind: str, number: int) -> Ask:
    chance = random.Random(f"{seed} {number}")
    match kind if kind != "serving" else chance.choice(("image", "query", "query", "grammar")):
        case "image":
            data = chance.choice(originals("jpeg"))
            return Ask('/v1/query?question=why&settings={"max_tokens":1}', data, "image/jpeg")
        case "grammar":
            return typed_query(chance)
    return query(chance, 64)


def _status(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["status"])
    except (ValueError, KeyError, TypeError):
        return ""


def _counted(answers: list[Answer]) -> dict[str, int]:
    return {f"status {status}": count for status, count in statuses(answers).items()}


TRIAL = Trial(
    "kills",
    "kill -9: 200 of the serving process, of an image worker and of a grammar worker each",
    600,
    f"callers know after more than {_KNOW_S:g} s; no answer within the longest start of the run, the documented delay "
    f"and {_SPARE_S:g} s; `/ready` says something else; a later connection breaks; workers outlive it; the kill of a "
    "worker fails more than one request",
    run,
)

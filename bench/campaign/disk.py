"""A full disk: logs and errors that cannot be written (/dev/full), and temporary files that cannot."""

import random
import signal
import time
from typing import Final

from bench.campaign.client import Answer, Ask, ask, chances, fault, query, typed_query
from bench.campaign.hooked import Hooks
from bench.campaign.image_mutations import originals
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial

FULL: Final = "/dev/full"  # each write fails with ENOSPC
KINDS: Final = ("stdout", "stdout and stderr", "temporary files")
_FLAGS: Final = ("--image-workers", "2", "--max-tokens", "64")
_BACK_S: Final = 10.0


def run(setup: Setup, first: int) -> Batches:
    for number, chance in chances(setup.seed, "disk", first):
        kind = KINDS[number % len(KINDS)]
        if kind == "temporary files":
            yield [_temporary(setup, number, chance)]
        else:
            yield [_streams(setup, number, chance, (FULL, FULL if "stderr" in kind else "/dev/null"), kind)]


def _streams(setup: Setup, number: int, chance: random.Random, streams: tuple[str, str], kind: str) -> Outcome:
    """Serve with streams that take nothing: everything is answered, and the end is in order."""
    with Server(setup, *_FLAGS, streams=streams) as server:
        serving = server.serving.pid
        answers = [ask(server.port, one) for one in _requests(chance)]
        wrong = [f"{kind} full: {line}" for line in map(_not_answered, answers) if line]
        wrong += [f"{kind} full: the serving process ended"] if server.serving.pid != serving else []
        server.signal(signal.SIGTERM)
        code = server.wait()
    wrong += [f"{kind} full: exit code {code}"] if code else []
    return Outcome(number, "; ".join(wrong[:4]), {"slowest answer (s)": max(one.seconds for one in answers)}, {kind: 1})


def _temporary(setup: Setup, number: int, chance: random.Random) -> Outcome:
    """Let temporary files fail while workers have to be started again; with space, everything is answered again."""
    with Hooks() as hooks, Server(setup, *_FLAGS, environment=hooks.environment) as server:
        serving = server.serving.pid
        hooks.tell(full=True)
        for worker in (*server.workers("image"), *server.workers("grammar")):
            worker.kill()
        during = [ask(server.port, one) for one in _requests(chance)]
        wrong = [f"while full: {line}" for line in map(fault, during) if line]
        questions = [one for one in during[::3] if one.status != 200]
        wrong += [f"while full: a question without image and schema got {one.status}" for one in questions]
        hooks.tell(full=False)
        begun = time.perf_counter()
        after = [_until_answered(server, one) for one in _requests(chance)[:3]]
        back = time.perf_counter() - begun
        wrong += [f"with space again: {line}" for line in map(_not_answered, after) if line]
        wrong += [server.restarts()]
        wrong += ["the serving process is another one"] if server.serving.pid != serving else []
        code = server.stop()
    wrong += [f"exit code {code}"] if code else []
    refused = sum(one.status == 503 for one in during)
    counts = {"temporary files": 1, "503 while full": refused}
    return Outcome(number, "; ".join(list(filter(None, wrong))[:4]), {"all answered again (s)": back}, counts)


def _until_answered(server: Server, request: Ask) -> Answer:
    """Ask until there is an answer: the pool may find out that it can start workers only when it next tries."""
    until = time.perf_counter() + _BACK_S
    while True:
        answer = ask(server.port, request)
        if answer.status == 200 or time.perf_counter() > until:
            return answer
        time.sleep(0.1)


def _requests(chance: random.Random) -> list[Ask]:
    """Return a question, an image and a schema, several times; every third is a plain question."""
    made = []
    for _ in range(4):
        image = chance.choice(originals("jpeg"))
        about = Ask('/v1/query?question=why&settings={"max_tokens":1}', image, "image/jpeg")
        made += [query(chance), about, typed_query(chance)]
    return made


def _not_answered(answer: Answer) -> str:
    return fault(answer) or (f"status {answer.status} ({answer.code})" if answer.status != 200 else "")


TRIAL = Trial(
    "disk",
    "full disks: of stdout, of stdout and stderr, of temporary files while workers are killed",
    30,
    "an answer other than 200 where only logs are lost; without temporary files also 503 for what needs a new worker; "
    f"not everything answered {_BACK_S:g} s after there is space; the serving process ends; the exit code is not 0",
    run,
)

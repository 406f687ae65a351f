"""A first step that compiles for a minute on the host: the watchdog does not take it for a hang."""

import os
from typing import Final

from bench.campaign.client import ask, chances, query
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial

SECONDS: Final = 60.0
HANG_S: Final = 60.0
"""As on a card; on the CPU the limit is ten times as long."""


def run(setup: Setup, first: int) -> Batches:
    yield from times(setup, first, SECONDS, HANG_S)


def times(setup: Setup, first: int, seconds: float, hang_s: float) -> Batches:
    """Compile for so many seconds, time by time, each in a new server."""
    folders = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"CAMPAIGN_COMPILING_S": str(seconds), "PYTHONPATH": os.pathsep.join(folders)}
    # Without the check at the start, it is a request that has to wait.
    flags = ("--hang-seconds", str(hang_s), "--no-check", "--image-workers", "1", "--deadline-seconds", "600")
    for number, chance in chances(setup.seed, "compiling", first):
        with Server(setup, *flags, program=("-m", "bench.campaign.slow_compiler"), environment=environment) as server:
            answer = ask(server.port, query(chance), timeout=10 * seconds + 60)
            alarms = len(server.events("hung")) + len(server.events("restarting"))
            ended = server.restarts()
        wrong = [f"status {answer.status} {answer.code}"] if answer.status != 200 else []
        wrong += [f"{alarms} alarms: {ended}"] if alarms else []
        wrong += ["it was answered too early"] if answer.seconds < seconds else []
        figures = {"alarms of the watchdog": float(alarms), "answered after (s)": answer.seconds}
        yield [Outcome(number, "; ".join(wrong), figures)]


TRIAL = Trial(
    "compiling",
    f"first steps that compile for {SECONDS:g} s (`--hang-seconds {HANG_S:g}`, as on a card)",
    5,
    "an alarm of the watchdog, a restart, or no answer",
    run,
)

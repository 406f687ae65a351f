"""A request whose own objects raise, at every touch of every member in turn: it ends, and no other one does."""

import itertools
from functools import cache

import pytest

from tests.simulation.hostile import MEMBERS, Hostility
from tests.simulation.simulator import Simulation

NOTHING = Hostility("nothing", 1, always=False)

TOUCHED = {
    "request": {"sequence.py __post_init__"},
    "key": {"sequence.py __post_init__"},
    "crops": {"scheduler/queues.py _read_crops"},
    "pixels": {"image_inputs.py read_crops"},
    "tiling": {"image_inputs.py read_crops"},
    "failure": {"scheduler/queues.py _request_crops"},
    "request_crops": {"scheduler/queues.py _request_crops"},
    "drop_crops": {"engine/core.py _free_images"},
    "allowed": {"engine/answers.py read_allowed"},
    "ahead": {"engine/answers.py read_allowed"},
    "run": {"engine/answers.py _read_run", "engine/answers.py _accept"},
    "forced": {"runner/sampling_params.py write_params", "runner/sampling_params.py _heads"},
    "permits": {"runner/sampling_params.py _heads"},
    "finish_reason": {"sequence.py accept"},
    "accept": {"sequence.py accept"},
    "on_token": {"sequence.py hand_out"},
    "on_finish": {"engine/core.py _close"},
}
"""For each member the functions that touch it. A new one is a new place where one request could harm all: confine what
it raises, then add it here."""

IN_CALLERS = {"request", "key"}
"""Read on the calling thread: a request that raises there is refused, and never reaches the engine."""


@cache
def victims() -> tuple[tuple[int, int], ...]:
    """Find simulations in which every request is answered; returns seeds, and a request with all members touched."""
    found = []
    for seed in itertools.count():
        simulation = Simulation(seed, calm=True)
        asks = simulation.asks[::-1]
        imaged = [place for place, ask in enumerate(asks) if ask.image is not None and ask.budget > 4 and ask.delay]
        if simulation.scenario.depth == 1 or not imaged or len(asks) > 12:
            continue
        simulation.make_hostile(imaged[0], NOTHING)
        simulation.run()
        [trap] = simulation.traps.values()
        # Grammars of words alone have no use for `permits`; the long simulation sees it.
        if simulation.seen["answered"] == len(asks) and trap.members >= {*MEMBERS} - {"permits"}:
            found.append((seed, imaged[0]))
            if len(found) == 2:
                return tuple(found)
    raise AssertionError("seeds have no end")


def sweep(seed: int, index: int, member: str, *, always: bool) -> set[str]:
    """Let one request raise at its first touch of a member, at the second ..., until there are no more touches."""
    requests, touched = len(Simulation(seed, calm=True).asks), set[str]()
    for at in itertools.count(1):
        simulation = Simulation(seed, calm=True)
        simulation.make_hostile(index, Hostility(member, at, always))
        simulation.run()  # every token is compared with what its request says alone, and all books are checked
        [trap] = simulation.traps.values()
        seen = simulation.seen
        refused, failed = seen["refused for raising"], seen["ended by HostileFault"]
        assert seen["answered"] + refused + failed == requests
        assert not simulation.dead
        assert refused <= (member in IN_CALLERS)
        if not trap.sites:
            assert seen["answered"] == requests
            return touched
        assert refused + failed <= 1
        touched.update(trap.sites)
    raise AssertionError("numbers have no end")


@pytest.mark.long
@pytest.mark.parametrize("member", MEMBERS)
def test_whatever_a_request_raises_ends_that_request_alone(member: str) -> None:
    touched: set[str] = set()
    for (seed, index), always in zip(victims(), (True, False), strict=True):
        touched |= sweep(seed, index, member, always=always)

    assert touched <= TOUCHED[member]
    assert touched or member == "permits"

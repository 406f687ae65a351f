"""A request whose own objects raise, at every touch of every member in turn: it ends, and nobody else notices."""

import pytest

from tests.simulation.hostile import MEMBERS, Hostility
from tests.simulation.simulator import Simulation

VICTIMS = ((648, 3, True), (199, 1, False))
"""Seeds of simulations in which every request is answered, each with a request that is about a picture, and whether
that goes on raising once it has begun.
"""

TOUCHED = {
    "request": {"sequence.py __post_init__"},
    "key": {"sequence.py __post_init__"},
    "crops": {"scheduler/encoding.py _read_crops"},
    "pixels": {"sequence.py read_crops"},
    "tiling": {"sequence.py read_crops"},
    "failure": {"scheduler/encoding.py _ask_for_crops"},
    "request_crops": {"scheduler/encoding.py _ask_for_crops"},
    "drop_crops": {"engine/core.py _let_go_of_pictures"},
    "allowed": {"engine/core.py _allowed"},
    "ahead": {"engine/core.py _sees_ahead", "engine/core.py _allowed"},
    "forced": {"runner/choices.py write_choice", "runner/choices.py _heads"},
    "permits": {"runner/choices.py _heads"},
    "finish_reason": {"engine/requests.py accept"},
    "accept": {"engine/requests.py accept"},
    "on_token": {"engine/requests.py accept"},
    "on_finish": {"engine/requests.py _tell"},
}
"""For each member the functions that touch it. A new one is a new place where one request could harm all: confine what
it raises, then add it here."""

IN_CALLERS = {"request", "key"}
"""Read on the thread that asks: a request that raises there is refused, and the engine never hears of it."""


def peaceful(seed: int) -> int:
    """Run a simulation in which nothing raises, and give how many requests it has."""
    simulation = Simulation(seed)
    simulation.make_hostile(0, Hostility("nothing", 1, always=False))
    simulation.run()
    requests = len(simulation.sequences)
    assert simulation.seen["answered"] == requests, "seeds mean something else by now: choose another one"
    return requests


def sweep(seed: int, index: int, member: str, *, always: bool) -> set[str]:
    """Let one request raise at its first touch of a member, at the second ..., until there are no more touches."""
    requests, touched, at = peaceful(seed), set[str](), 0
    while True:
        at += 1
        simulation = Simulation(seed)
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


@pytest.mark.parametrize("member", MEMBERS)
def test_whatever_a_request_raises_ends_that_request_alone(member: str) -> None:
    touched: set[str] = set()
    for seed, index, always in VICTIMS:
        touched |= sweep(seed, index, member, always=always)

    assert touched == TOUCHED[member]

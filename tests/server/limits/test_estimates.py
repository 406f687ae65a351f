import math
import random

import pytest

from photonlite.server.backend import Call, Skill
from photonlite.server.limits.estimates import Costs, Crowding, Kind, RunningMean, kind_of

KIND = Kind("query", False, False, False, 9)
OTHER = KIND._replace(skill="caption")


def call(skill: Skill = "query", image: bytes | None = None, **arguments: object) -> Call:
    return Call(skill, image, arguments)


def test_calls_of_about_the_same_cost_are_of_one_kind() -> None:
    first = kind_of(call(settings={"max_tokens": 300, "max_objects": 3}))
    assert first == kind_of(call(settings={"max_tokens": 511, "max_objects": 100})) == KIND
    assert first != kind_of(call(settings={"max_tokens": 512}))
    assert first != kind_of(call(image=b"x", settings={"max_tokens": 300}))
    assert first != kind_of(call(choices=["a", "b"], settings={"max_tokens": 300}))
    assert first != kind_of(call(reasoning=True, settings={"max_tokens": 300}))
    assert kind_of(call("detect", settings={"max_tokens": 300, "max_objects": 3})).length == 2


def test_a_mean_follows_and_its_spread_with_it() -> None:
    chance, running = random.Random(0), RunningMean()
    for _ in range(2000):
        running.add(chance.gauss(5, 1))
    assert running.mean == pytest.approx(5, abs=0.4)
    assert running.variance == pytest.approx(1, rel=0.4)
    for _ in range(500):
        running.add(1)
    assert running.mean == pytest.approx(1, abs=0.01)
    assert running.variance == pytest.approx(0, abs=0.01)


def test_a_sum_is_less_certain_the_fewer_values_are_known() -> None:
    few, many = RunningMean(), RunningMean()
    for number in range(200):
        many.add(number % 2)
        if number < 4:
            few.add(number % 2)
    assert few.sum_of(10).mean == pytest.approx(5)
    assert few.sum_of(10).variance > many.sum_of(10).variance > 10 * 0.24
    assert many.sum_of(10, least=3).mean == 30


def test_what_nobody_has_asked_costs_nothing_and_an_unknown_kind_what_others_do() -> None:
    costs = Costs()
    assert costs.of(KIND).sum_of(5).most == 0
    costs.add(OTHER, 2.0, answered=True)
    assert costs.of(KIND).mean == 2
    costs.add(KIND, 4.0, answered=True)
    assert (costs.of(KIND).mean, costs.of(OTHER).mean) == (4, 2)


def test_what_was_given_up_late_counts_as_longer_and_what_was_given_up_early_not_at_all() -> None:
    costs = Costs()
    costs.add(KIND, 4.0, answered=False)
    assert costs.of(KIND).mean == 4  # before anything else is known
    costs.add(KIND, 1.0, answered=False)
    assert costs.of(KIND).mean == 4
    costs.add(KIND, 6.0, answered=False)
    assert costs.of(KIND).mean == (4 + 6 + 4) / 2


def crowded(lone: float, slope: float, counts: tuple[int, ...]) -> Crowding:
    crowding = Crowding()
    for count in counts:
        for _ in range(4):
            crowding.add(count, lone + slope * (count - 1))
    return crowding


def test_room_is_what_keeps_requests_at_as_many_times_their_own_time_as_there_are_callers() -> None:
    assert crowded(1.0, 1.0, (1, 8)).room(2) == pytest.approx(2)  # a CPU: one after the other is as quick
    assert crowded(1.0, 1.0, (2, 5)).room(3) == pytest.approx(3)
    assert crowded(1.0, 0.1, (1, 8)).room(2) == pytest.approx(11)
    assert crowded(1.0, 0.1, (1, 8)).room(3) == pytest.approx(21)
    assert crowded(1.0, 0.0, (1, 8)).room(2) == math.inf
    assert crowded(1.0, 5.0, (1, 8)).room(2) == 2


def test_first_it_is_found_out_what_few_take_and_then_what_many_do() -> None:
    assert Crowding().room(2) == 2
    assert crowded(1.0, 1.0, (8,)).room(2) == 2
    assert crowded(1.0, 1.0, (1,)).room(2) == math.inf

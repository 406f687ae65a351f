import asyncio
import math
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from photonlite.results import Answer, Metrics
from photonlite.server.calls import Call, Skill
from photonlite.server.limits import turns as module
from photonlite.server.limits.callers import Caller
from photonlite.server.limits.turns import Costs, Crowding, EngineTurns, Kind, RunningMean, Turn, kind_of
from photonlite.skills.search import MAX_REQUESTS
from tests.serving import run

A, B, C, TWICE = Caller("a"), Caller("b"), Caller("c"), Caller("twice", weight=2)
KIND = Kind("query", 0, False, False, 9)
LONG = KIND._replace(length=10)
OTHER = KIND._replace(skill="caption")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def checked(test: Callable[[EngineTurns, Clock], None]) -> Callable[[], None]:
    """Run a test on an event loop, with an engine that works on four at a time."""

    async def main() -> None:
        clock = Clock()
        test(EngineTurns(4, clock), clock)

    def test_run() -> None:
        run(main())

    test_run.__name__ = test.__name__
    return test_run


def inside(turns: list[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.granted.done() and not turn.left]


def oldest(*asked: list[Turn]) -> Turn:
    """The request inside that was admitted first."""
    return min((turn for listed in asked for turn in inside(listed)), key=lambda turn: turn.begun)


def answer(turns: EngineTurns, clock: Clock, turn: Turn, seconds: float = 1.0) -> None:
    clock.now += seconds
    turns.leave(turn, "answered")


def learn(turns: EngineTurns, clock: Clock, kind: Kind = KIND, cost: float = 1.0, times: int = 4) -> None:
    """Answer lone requests of a caller that is forgotten afterwards."""
    for _ in range(times):
        answer(turns, clock, turns.join(C, kind), cost)
    clock.now += 1000


@checked
def test_a_caller_alone_fills_the_engine_and_a_little_more(turns: EngineTurns, clock: Clock) -> None:
    asked = [turns.join(A, KIND) for _ in range(20)]
    assert inside(asked) == asked[:5]
    answer(turns, clock, asked[0])
    assert inside(asked) == asked[1:6]


@checked
def test_a_second_caller_enters_a_full_engine_which_shrinks_to_fit_both(turns: EngineTurns, clock: Clock) -> None:
    greedy = [turns.join(A, KIND) for _ in range(50)]
    assert turns.join(B, KIND).granted.done()
    for turn in greedy[:4]:
        answer(turns, clock, turn)
    assert len(inside(greedy)) == 1


@checked
def test_a_caller_that_has_just_left_keeps_its_room(turns: EngineTurns, clock: Clock) -> None:
    greedy = [turns.join(A, KIND) for _ in range(50)]
    light = turns.join(B, KIND)
    for turn in greedy[:4]:
        answer(turns, clock, turn)
    answer(turns, clock, light)
    assert len(inside(greedy)) == 1
    clock.now += module._PRESENT_S + 1
    answer(turns, clock, inside(greedy)[0])
    assert len(inside(greedy)) == 5


@checked
def test_backlogged_callers_fill_the_engine_and_take_turns(turns: EngineTurns, clock: Clock) -> None:
    asked = {caller: [turns.join(caller, KIND) for _ in range(40)] for caller in (A, B)}
    for _ in range(40):
        answer(turns, clock, oldest(*asked.values()))
    assert sum(len(inside(listed)) for listed in asked.values()) == 4
    assert abs(sum(turn.left for turn in asked[A]) - 20) <= 2


@checked
def test_turns_are_proportional_to_weights(turns: EngineTurns, clock: Clock) -> None:
    asked = {caller: [turns.join(caller, KIND) for _ in range(100)] for caller in (A, TWICE)}
    for _ in range(60):
        answer(turns, clock, oldest(*asked.values()))
    assert sum(turn.left for turn in asked[TWICE]) == pytest.approx(40, abs=3)


@checked
def test_turns_are_charged_in_seconds_not_requests(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock, KIND, 1.0)
    learn(turns, clock, LONG, 5.0)
    asked = {A: [turns.join(A, KIND) for _ in range(99)], B: [turns.join(B, LONG) for _ in range(99)]}
    done = {A: 0, B: 0}
    while sum(done.values()) < 60:
        caller = A if inside(asked[A]) and (done[A] < 5 * done[B] or not inside(asked[B])) else B
        next_one = inside(asked[caller])[0]
        entered, count = next_one.entered, sum(len(inside(listed)) for listed in asked.values())
        assert entered is not None
        left = (1.0 if caller is A else 5.0) - (turns._work - entered)
        answer(turns, clock, next_one, max(0.0, left) * count)
        done[caller] += 1
    assert done[A] / done[B] == pytest.approx(5, rel=0.35)


@checked
def test_a_pause_earns_no_credit(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock)
    first = turns.join(B, KIND)
    answer(turns, clock, first)
    for _ in range(100):
        answer(turns, clock, turns.join(A, KIND))
    greedy = [turns.join(A, KIND) for _ in range(20)]
    back = [turns.join(B, KIND) for _ in range(20)]
    for _ in range(16):
        answer(turns, clock, oldest(greedy, back))
    assert sum(turn.left for turn in greedy) >= 6


@checked
def test_a_caller_owes_a_newcomer_nothing_for_time_alone(turns: EngineTurns, clock: Clock) -> None:
    for _ in range(100):
        answer(turns, clock, turns.join(A, KIND))
    new = [turns.join(B, KIND) for _ in range(20)]
    old = [turns.join(A, KIND) for _ in range(20)]
    for _ in range(16):
        answer(turns, clock, oldest(new, old))
    assert sum(turn.left for turn in old) + len(inside(old)) >= 4


@checked
def test_real_time_goes_first_within_the_lead_of_its_caller(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock)
    bulk = [turns.join(B, KIND) for _ in range(20)]
    at_once = []
    for _ in range(12):
        frame = turns.join(A, KIND, realtime=True)
        at_once.append(frame.granted.done())
        while not frame.granted.done():
            answer(turns, clock, oldest(bulk))
        assert frame.granted.result() is True
        answer(turns, clock, frame, 6.0)
    assert at_once[:5] == [True] * 5
    assert False in at_once
    assert sum(turn.left for turn in bulk) >= 2


@checked
def test_many_sockets_of_a_caller_are_bulk_work_beyond_its_lead(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock, cost=0.2)
    turns.join(B, KIND)
    frames = [turns.join(A, KIND, realtime=True) for _ in range(6)]
    assert [frame.granted.result() for frame in inside(frames)] == [True] * 4 + [False] * 2


@checked
def test_real_time_of_a_lone_caller_always_goes_first(turns: EngineTurns, clock: Clock) -> None:
    for _ in range(50):
        frame = turns.join(A, KIND, realtime=True)
        assert frame.granted.result() is True
        answer(turns, clock, frame)


@checked
def test_a_request_that_leaves_while_waiting_is_removed(turns: EngineTurns, clock: Clock) -> None:
    asked = [turns.join(A, KIND) for _ in range(7)]
    turns.leave(asked[5], "given up")
    turns.leave(asked[5], "given up")
    answer(turns, clock, asked[0])
    assert inside(asked) == [*asked[1:5], asked[6]]
    for turn in asked:
        turns.leave(turn, "given up")
    assert not turns._busy
    assert not turns._inside


def test_a_task_cancelled_as_its_turn_comes_leaves_nothing_behind() -> None:
    async def main() -> None:
        turns = EngineTurns(1, Clock())
        asked = [turns.join(A, KIND) for _ in range(2)]

        async def wait() -> None:
            turn = turns.join(A, KIND)
            try:
                await turn.granted
                pytest.fail("it was cancelled")
            finally:
                turns.leave(turn, "given up")

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        turns.leave(asked[0], "answered")  # its turn comes between its cancellation and its end
        with suppress(asyncio.CancelledError):
            await task
        turns.leave(asked[1], "answered")
        assert not turns._busy

    run(main())


@checked
def test_the_number_of_remembered_absent_callers_is_bounded(turns: EngineTurns, clock: Clock) -> None:
    for number in range(module._MOST_ABSENT + 50):
        answer(turns, clock, turns.join(Caller(str(number)), KIND), 0.0)
    assert len(turns._absent) == module._MOST_ABSENT


@checked
def test_the_expected_wait_counts_the_own_queue_and_as_much_of_others(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock, cost=1.0, times=64)
    assert turns.expected_s(A, KIND) == 0
    for _ in range(20):
        turns.join(A, KIND)
    alone = turns.expected_s(A, KIND)
    assert alone == pytest.approx(1.1 * (15 + 6))  # 15 wait, and then it is one of six inside
    assert turns.expected_s(A) < alone
    for _ in range(8):
        turns.join(B, KIND)
    assert turns.expected_s(A, KIND) == pytest.approx(1.1 * (15 + 7 + 7))
    assert turns.expected_s(B, KIND) == pytest.approx(1.1 * (7 + 8 + 7))
    assert turns.expected_s(C, KIND) == 0


@checked
def test_without_answers_the_expectation_grows_with_time_inside(turns: EngineTurns, clock: Clock) -> None:
    for _ in range(45):
        turns.join(A, KIND)
    assert turns.expected_s(A, KIND) == 0
    clock.now += 10  # five are inside: each has had two seconds
    assert turns.expected_s(A, KIND) == pytest.approx(1.1 * 2 * (40 + 6))


@checked
def test_after_slow_answers_an_idle_caller_is_still_admitted(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock, cost=1000.0)
    first = turns.join(A, KIND)
    assert turns.expected_s(A, KIND) > 1000
    answer(turns, clock, first, 0.1)
    tried = 0
    while turns.expected_s(A, KIND) == 0:
        turn = turns.join(A, KIND)
        if turns.expected_s(A, KIND) < 60:
            break
        answer(turns, clock, turn, 0.1)
        tried += 1
    assert tried < 500


def call(skill: Skill = "query", image: bytes | None = None, **arguments: object) -> Call:
    return Call(skill, image, arguments)


def test_calls_of_about_the_same_cost_have_one_kind() -> None:
    first = kind_of(call(settings={"max_tokens": 300, "max_objects": 3}))
    assert first == kind_of(call(settings={"max_tokens": 511, "max_objects": 100})) == KIND
    assert first != kind_of(call(settings={"max_tokens": 512}))
    assert first != kind_of(call(image=b"x", settings={"max_tokens": 300}))
    assert first != kind_of(call(choices=["a", "b"], settings={"max_tokens": 300}))
    assert kind_of(call(choices=["a"] * 3)) != kind_of(call(choices=["a"] * 64))
    assert first != kind_of(call(reasoning=True, settings={"max_tokens": 300}))
    assert kind_of(call("detect", settings={"max_tokens": 300, "max_objects": 3})).length == 2


def test_calls_about_more_images_have_another_kind() -> None:
    kinds = {kind_of(Call("chat", None, {"messages": []}, images=(b"x",) * count)) for count in (0, 1, 2, 3, 4)}
    assert [kind.images for kind in sorted(kinds)] == [0, 1, 2, 3]


def test_a_running_mean_follows_its_values() -> None:
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
    assert few.variance_of_sum(10) > many.variance_of_sum(10) > 10 * 0.24


def test_a_kind_without_answers_costs_what_other_kinds_cost() -> None:
    costs = Costs()
    assert costs.of(KIND).mean == 0
    costs.add(OTHER, 2.0, "answered")
    assert costs.of(KIND).mean == 2
    costs.add(KIND, 4.0, "answered")
    assert (costs.of(KIND).mean, costs.of(OTHER).mean) == (4, 2)


def test_requests_given_up_late_count_as_longer_and_those_given_up_early_are_skipped() -> None:
    costs = Costs()
    costs.add(KIND, 4.0, "given up")
    assert costs.of(KIND).mean == 4  # before anything else is known
    costs.add(KIND, 1.0, "given up")
    assert costs.of(KIND).mean == 4
    costs.add(KIND, 6.0, "given up")
    assert costs.of(KIND).mean == (4 + 6 + 4) / 2


def crowded(lone: float, slope: float, counts: tuple[int, ...]) -> Crowding:
    crowding = Crowding()
    for count in counts:
        for _ in range(4):
            crowding.add(count, lone + slope * (count - 1))
    return crowding


def test_room_limits_the_slowdown_to_the_number_of_callers() -> None:
    assert crowded(1.0, 1.0, (1, 8)).room(2) == pytest.approx(2)  # a CPU: one after the other is as quick
    assert crowded(1.0, 1.0, (2, 5)).room(3) == pytest.approx(3)
    assert crowded(1.0, 0.1, (1, 8)).room(2) == pytest.approx(11)
    assert crowded(1.0, 0.1, (1, 8)).room(3) == pytest.approx(21)
    assert crowded(1.0, 0.0, (1, 8)).room(2) == math.inf
    assert crowded(1.0, 5.0, (1, 8)).room(2) == 2


def test_few_requests_are_measured_before_many() -> None:
    assert Crowding().room(2) == 2
    assert crowded(1.0, 1.0, (8,)).room(2) == 2
    assert crowded(1.0, 1.0, (1,)).room(2) == math.inf


def test_names_and_tiles_count_as_requests() -> None:
    def parts(**arguments: object) -> int:
        return kind_of(Call("detect", b"", {"object": "mug", **arguments})).parts

    assert parts() == 1
    assert parts(object=["mug"]) == 1
    assert parts(object=["mug", "key", "dog"]) == 4
    assert parts(tile=[3, 3]) == 16
    assert parts(tile="auto", object=["mug", "key"]) == 32


def test_a_call_counts_for_no_more_requests_than_it_may_make() -> None:
    hostile = Call("detect", b"", {"object": [f"n{index}" for index in range(64)], "tile": [8, 8]})
    assert kind_of(hostile).parts == MAX_REQUESTS


@checked
def test_a_request_that_was_refused_changes_no_estimate(turns: EngineTurns, clock: Clock) -> None:
    learn(turns, clock)
    refused, mine = turns.join(B, OTHER._replace(parts=64)), turns.join(A, KIND)
    before = turns._costs.of(OTHER).mean
    clock.now += 100
    turns.leave(refused, "refused")
    turns.leave(mine, "refused")

    assert turns._costs.of(OTHER).mean == turns._costs.of(KIND).mean == before
    assert turns._absent["b"][0] > 50  # but its caller pays for the time


@checked
def test_one_request_adds_no_more_to_an_estimate_than_a_caller_that_fills_the_engine(
    turns: EngineTurns, clock: Clock
) -> None:
    learn(turns, clock)
    turns.join(A, KIND)
    turns.join(B, KIND._replace(parts=64))

    assert turns.expected_s(A, KIND) == pytest.approx(1.1 * (1 + 1 + 5))


@checked
def test_a_call_pays_for_requests_that_it_made_at_the_same_time(turns: EngineTurns, clock: Clock) -> None:
    for caller, busy_s in ((A, 3.0), (B, 9.0), (C, 1000.0)):
        turn = turns.join(caller, KIND)
        clock.now += 3.0
        turns.leave(turn, "answered", Answer("yes", metrics=Metrics(decode_s=busy_s)))

    assert [turns._absent[name][0] for name in "abc"] == pytest.approx([3.0, 3.0 + 9.0, 12.0 + 12.0])


MANY = KIND._replace(parts=4)


@checked
def test_a_request_of_many_parts_fills_the_engine_like_as_many_requests(turns: EngineTurns, clock: Clock) -> None:
    first, second = turns.join(A, MANY), turns.join(A, KIND)
    assert inside([first, second]) == [first, second]
    later = turns.join(A, KIND)
    assert not inside([later])  # five parts are inside already, a quarter more than four
    answer(turns, clock, first)
    assert inside([second, later]) == [second, later]


@checked
def test_a_request_of_many_parts_keeps_no_other_caller_out(turns: EngineTurns, clock: Clock) -> None:
    large, other = turns.join(A, KIND._replace(parts=64)), turns.join(B, KIND)
    assert inside([large, other]) == [large, other]


@checked
def test_a_caller_pays_for_each_part(turns: EngineTurns, clock: Clock) -> None:
    many, one = turns.join(A, MANY), turns.join(B, KIND)
    clock.now += 5.0
    turns.leave(many, "answered")
    turns.leave(one, "answered")

    assert turns._absent["a"][0] == pytest.approx(4 * turns._absent["b"][0])

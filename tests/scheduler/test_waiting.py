"""Waiting sequences: found by age and by image, and candidates unless they are blocked."""

from random import Random

import pytest

from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.queues import WaitingQueue
from photonlite.sequence import Sequence
from tests.engine.fakes import FakeImage, FakeSink, Words


def sequence(number: int, image: str | None = None) -> Sequence:
    request = Request("query", (Token(1),), Words(9), 9, SamplingSettings())
    return Sequence(number, request, FakeSink(), 1, None if image is None else FakeImage(image))


def filled(*images: str | None) -> WaitingQueue:
    waiting = WaitingQueue(8)
    for number, image in enumerate(images):
        waiting.add(sequence(number, image))
    return waiting


def numbers(waiting: WaitingQueue) -> list[int]:
    return [one.number for one in waiting.candidates()]


def test_candidates_come_in_the_order_of_their_numbers() -> None:
    assert numbers(filled("a", None, "b", "a", None, "b", "a")) == [0, 1, 2, 3, 4, 5, 6]


def test_a_blocked_sequence_is_no_candidate_until_its_image_is_unblocked() -> None:
    waiting = filled("a", None, "b", "a", None)
    for one in list(waiting)[:3:2]:
        waiting.block(one)
    assert numbers(waiting) == [1, 3, 4]

    waiting.unblock("a")
    assert numbers(waiting) == [0, 1, 3, 4]


def test_a_new_sequence_is_a_candidate_while_others_about_its_image_are_blocked() -> None:
    waiting = filled("a")
    waiting.block(next(waiting.candidates()))
    waiting.add(sequence(5, "a"))

    assert numbers(waiting) == [5]


def test_unblocking_an_image_without_requests_changes_nothing() -> None:
    waiting = filled("a")
    waiting.unblock("b")

    assert numbers(waiting) == [0]


def test_a_walk_goes_on_when_its_sequences_are_removed_or_blocked() -> None:
    waiting, seen = filled("a", "b", "a", None, "b", "a"), []
    for one in waiting.candidates():
        seen.append(one.number)
        if [span.key for span in one.images] == ["b"]:
            waiting.block(one)
        elif one.number != 2:
            waiting.remove(one)

    assert seen == [0, 1, 2, 3, 4, 5]
    assert [one.number for one in waiting] == [1, 2, 4]


def test_the_first_sequence_about_an_image_is_the_oldest() -> None:
    waiting = filled("a", "b", "a")
    found = list(waiting)
    assert waiting.first_about("a") is found[0]
    waiting.remove(found[0])
    assert waiting.first_about("a") is found[2]
    assert waiting.first_about("c") is None


def test_a_queue_is_in_the_order_of_numbers() -> None:
    waiting = WaitingQueue(8)
    for number in (3, 5, 1, 4, 2):
        waiting.add(sequence(number))

    assert [one.number for one in waiting] == [1, 2, 3, 4, 5]
    assert [one.number for one in waiting.first(2)] == [1, 2]
    assert len(waiting.first(9)) == 5


def test_removing_an_unknown_sequence_is_an_error() -> None:
    waiting = filled("a")
    with pytest.raises(ValueError, match="not in list"):
        waiting.remove(sequence(3, "a"))

    assert numbers(waiting) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_candidates_are_the_sequences_that_are_not_blocked_in_order(seed: int) -> None:
    draw, waiting = Random(seed), WaitingQueue(8)
    inside: dict[int, Sequence] = {}
    blocked: set[int] = set()
    for number in draw.sample(range(1000), 300):  # some come late, as the pre-empted do
        deed = draw.random()
        if deed < 0.5 or not inside:
            one = sequence(number, draw.choice([None, "a", "b", "c", "d"]))
            waiting.add(one)
            inside[number] = one
        elif deed < 0.7:
            waiting.remove(inside.pop(draw.choice(list(inside))))
        elif deed < 0.9:
            one = draw.choice(list(inside.values()))
            if one.number not in blocked:
                waiting.block(one)
            blocked.add(one.number)
        else:
            waiting.unblock(key := draw.choice("abcd"))
            blocked -= {one.number for one in inside.values() if key in [span.key for span in one.images]}
        assert numbers(waiting) == sorted(inside.keys() - blocked)
        assert len(waiting) == len(inside)

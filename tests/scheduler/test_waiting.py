"""Sequences that wait: found by rank and by image, and looked at only where they may be ready."""

from random import Random

import pytest

from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.waiting import WaitingQueue
from photonlite.sequence import Sequence
from tests.engine.fakes import FakeImage, FakeSink, Words


def sequence(number: int, image: str | None = None) -> Sequence:
    request = Request("query", (Token(1),), Words(9), 9, SamplingSettings())
    return Sequence(number, request, FakeSink(), 1, None if image is None else FakeImage(image))


def filled(*images: str | None) -> WaitingQueue:
    waiting = WaitingQueue()
    for number, image in enumerate(images):
        waiting.add(sequence(number, image))
    return waiting


def numbers(waiting: WaitingQueue) -> list[int]:
    return [one.number for one in waiting.candidates()]


def test_candidates_of_all_lines_come_in_the_order_of_their_numbers() -> None:
    assert numbers(filled("a", None, "b", "a", None, "b", "a")) == [0, 1, 2, 3, 4, 5, 6]


def test_who_is_not_ready_hides_all_who_wait_for_the_same_image_until_the_line_is_opened() -> None:
    waiting = filled("a", None, "b", "a", None)
    waiting.close(next(waiting.candidates()))
    assert numbers(waiting) == [1, 2, 4]

    waiting.open("a")
    assert numbers(waiting) == [0, 1, 2, 3, 4]


def test_a_newcomer_opens_its_line() -> None:
    waiting = filled("a")
    waiting.close(next(waiting.candidates()))
    waiting.add(sequence(5, "a"))

    assert numbers(waiting) == [0, 5]


def test_opening_the_line_of_an_image_that_nobody_waits_for_changes_nothing() -> None:
    waiting = filled("a")
    waiting.open("b")

    assert numbers(waiting) == [0]


def test_a_walk_goes_on_when_those_it_has_given_are_taken_out_or_closed() -> None:
    waiting, seen = filled("a", "b", "a", None, "b", "a"), []
    for one in waiting.candidates():
        seen.append(one.number)
        if one.image_key == "b":
            waiting.close(one)
        elif one.number != 2:
            waiting.remove(one)

    assert seen == [0, 1, 2, 3, 5]
    assert [one.number for one in waiting] == [1, 2, 4]


def test_the_first_about_an_image_is_the_oldest() -> None:
    waiting = filled("a", "b", "a")
    found = list(waiting)
    assert waiting.first_about("a") is found[0]
    waiting.remove(found[0])
    assert waiting.first_about("a") is found[2]
    assert waiting.first_about("c") is None


def test_a_queue_is_in_the_order_of_ages() -> None:
    waiting = WaitingQueue()
    for number in (3, 5, 1, 4, 2):
        waiting.add(sequence(number))

    assert [one.number for one in waiting] == [1, 2, 3, 4, 5]
    assert [one.number for one in waiting.first(2)] == [1, 2]
    assert len(waiting.first(9)) == 5


def test_taking_out_who_is_not_there_is_an_error() -> None:
    waiting = filled("a")
    with pytest.raises(ValueError, match="not in list"):
        waiting.remove(sequence(3, "a"))

    assert numbers(waiting) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_candidates_are_those_of_open_lines_in_order(seed: int) -> None:
    draw, waiting = Random(seed), WaitingQueue()
    inside: dict[int, Sequence] = {}
    closed: set[str | None] = set()
    for number in draw.sample(range(1000), 300):  # some come late, as the pre-empted do
        deed = draw.random()
        if deed < 0.5 or not inside:
            one = sequence(number, draw.choice([None, "a", "b", "c", "d"]))
            waiting.add(one)
            inside[number] = one
            closed.discard(one.image_key)
        elif deed < 0.7:
            waiting.remove(inside.pop(draw.choice(list(inside))))
        elif deed < 0.9:
            one = draw.choice(list(inside.values()))
            waiting.close(one)
            closed.add(one.image_key)
        else:
            waiting.open(key := draw.choice("abcd"))
            closed.discard(key)
        closed &= {one.image_key for one in inside.values()}  # an empty line is forgotten
        assert numbers(waiting) == sorted(one.number for one in inside.values() if one.image_key not in closed)
        assert len(waiting) == len(inside)

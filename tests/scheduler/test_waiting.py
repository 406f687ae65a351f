"""Sequences that wait: found by rank and by image, and looked at only where they may be ready."""

from random import Random

import pytest

from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.waiting import Waiting
from photonlite.sequence import Sequence
from tests.engine.fakes import FakeImage, FakeSink, Words


def sequence(number: int, image: str | None = None, *, realtime: bool = False) -> Sequence:
    request = Request("query", (Token(1),), Words(9), 9, SamplingSettings(), realtime=realtime)
    return Sequence(number, request, FakeSink(), 1, None if image is None else FakeImage(image))


def filled(*images: str | None) -> Waiting:
    waiting = Waiting()
    for number, image in enumerate(images):
        waiting.add(sequence(number, image))
    return waiting


def numbers(waiting: Waiting, *, realtime: bool = False) -> list[int]:
    return [one.number for one in waiting.candidates(realtime=realtime)]


def test_candidates_of_all_lines_come_in_the_order_of_their_numbers() -> None:
    assert numbers(filled("a", None, "b", "a", None, "b", "a")) == [0, 1, 2, 3, 4, 5, 6]


def test_who_is_not_ready_hides_all_who_wait_for_the_same_image_until_the_line_is_opened() -> None:
    waiting = filled("a", None, "b", "a", None)
    waiting.close(next(waiting.candidates(realtime=False)))
    assert numbers(waiting) == [1, 2, 4]

    waiting.open("a")
    assert numbers(waiting) == [0, 1, 2, 3, 4]


def test_a_newcomer_opens_its_line() -> None:
    waiting = filled("a")
    waiting.close(next(waiting.candidates(realtime=False)))
    waiting.add(sequence(5, "a"))

    assert numbers(waiting) == [0, 5]


def test_opening_the_line_of_an_image_that_nobody_waits_for_changes_nothing() -> None:
    waiting = filled("a")
    waiting.open("b")

    assert numbers(waiting) == [0]


def test_a_walk_goes_on_when_those_it_has_given_are_taken_out_or_closed() -> None:
    waiting, seen = filled("a", "b", "a", None, "b", "a"), []
    for one in waiting.candidates(realtime=False):
        seen.append(one.number)
        if one.image_key == "b":
            waiting.close(one)
        elif one.number != 2:
            waiting.remove(one)

    assert seen == [0, 1, 2, 3, 5]
    assert [one.number for one in waiting] == [1, 2, 4]


def test_the_first_about_an_image_is_a_realtime_one_if_there_is_any() -> None:
    waiting = filled("a", "b", "a")
    assert (first := waiting.about("a")) is not None
    assert first.number == 0
    waiting.add(urgent := sequence(7, "a", realtime=True))

    assert waiting.about("a") is urgent
    assert waiting.about("c") is None


def test_the_oldest_is_the_one_that_was_asked_for_first_whenever_it_was_handed_in() -> None:
    waiting, asked = Waiting(), (7.0, 3.0, 5.0, 3.0)
    for number, submitted in enumerate(asked):
        one = sequence(number)
        one.times.submitted = submitted
        waiting.add(one)
    order = []
    while (oldest := waiting.oldest(realtime=False)) is not None:
        order.append(oldest.number)
        waiting.remove(oldest)

    assert order == [1, 3, 2, 0]
    assert waiting.oldest(realtime=True) is None


def test_taking_out_who_is_not_there_is_an_error() -> None:
    waiting = filled("a")
    with pytest.raises(ValueError, match="not in list"):
        waiting.remove(sequence(3, "a"))

    assert numbers(waiting) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_candidates_are_those_of_open_lines_in_order(seed: int) -> None:
    draw, waiting = Random(seed), Waiting()
    inside: dict[int, Sequence] = {}
    closed: set[tuple[bool, str | None]] = set()
    for number in draw.sample(range(1000), 300):  # some come late, as the pre-empted do
        deed = draw.random()
        if deed < 0.5 or not inside:
            one = sequence(number, draw.choice([None, "a", "b", "c", "d"]), realtime=draw.random() < 0.5)
            waiting.add(one)
            inside[number] = one
            closed.discard((one.realtime, one.image_key))
        elif deed < 0.7:
            waiting.remove(inside.pop(draw.choice(list(inside))))
        elif deed < 0.9:
            one = draw.choice(list(inside.values()))
            waiting.close(one)
            closed.add((one.realtime, one.image_key))
        else:
            waiting.open(key := draw.choice("abcd"))
            closed -= {(True, key), (False, key)}
        closed &= {(one.realtime, one.image_key) for one in inside.values()}  # an empty line is forgotten
        for realtime in (True, False):
            of_class = [one for one in inside.values() if one.realtime == realtime]
            able = [one.number for one in of_class if (realtime, one.image_key) not in closed]
            assert numbers(waiting, realtime=realtime) == sorted(able)
        assert len(waiting) == len(inside)

"""The rule by simulation: workloads that are drawn, beside a memory that keeps all."""

from collections import OrderedDict
from collections.abc import Iterable
from random import Random

import pytest

from photonlite.cache.store.budget import COPY_S, CopyBudget

COMPUTING_S = 10 * COPY_S  # of an image, as on a fast card
ROOM = 100  # images that memory has room for
SIZE = 1000


def simulate(images: Iterable[int], *, room: int = ROOM, computing_s: float = COMPUTING_S) -> tuple[int, int, int]:
    """Ask about images in turn; returns how many are computed, how many of them copied, and how many found."""
    budget, memory = CopyBudget(room * SIZE), OrderedDict[int, None]()
    computed = copied = found = 0
    for image in images:
        if image in memory:
            found += 1
            memory.move_to_end(image)
            budget.note_found(str(image), computing_s)
            continue
        computed += 1
        if budget.allows(str(image), SIZE, computing_s):
            copied += 1
            memory[image] = None
            if len(memory) > room:
                memory.popitem(last=False)
    return computed, copied, found


@pytest.mark.parametrize("computing", [1.0, 10.0, 40.0])
def test_images_that_never_repeat_cost_two_percent_of_computing_them(computing: float) -> None:
    computed, copied, _ = simulate(range(5000), computing_s=computing * COPY_S)

    assert copied * COPY_S <= 0.02 * computed * computing * COPY_S * 1.0001
    assert copied >= 0.02 * computed * computing - 1


def test_images_whose_computing_takes_long_are_all_kept() -> None:
    assert simulate(range(500), computing_s=50 * COPY_S) == (500, 500, 0)


def test_images_that_begin_to_repeat_are_found_from_the_third_time_on() -> None:
    laps = [image for _ in range(10) for image in range(1000, 1000 + ROOM - 10)]
    _, _, found = simulate([*range(1000), *laps])
    assert found >= 8 * (ROOM - 10)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_drawn_workloads_find_most_of_what_a_memory_that_keeps_all_finds(share: float) -> None:
    dice, images = Random(0), list[int]()
    for number in range(20_000):
        images.append(dice.choice(images[-ROOM // 2 :]) if images and dice.random() < share else number)
    kept, _, found = simulate(images)
    _, _, most = simulate(images, computing_s=1000.0)

    assert found >= 0.8 * most
    assert kept + found == len(images)


def test_images_that_repeat_too_late_for_the_memory_cost_as_those_that_never_do() -> None:
    computed, copied, found = simulate([image for _ in range(10) for image in range(3 * ROOM)])
    assert copied * COPY_S <= 0.02 * computed * COMPUTING_S + found * COMPUTING_S


def test_copies_end_soon_after_images_no_longer_repeat() -> None:
    budget = CopyBudget(ROOM * SIZE)
    for _ in range(1000):
        budget.note_found("image", 1.0)
    copied = sum(budget.allows(str(number), SIZE, COMPUTING_S) for number in range(1000))
    assert copied <= 100 / (1 - 0.2) + 200 + 1


def test_while_the_time_of_computing_is_unknown_all_is_kept() -> None:
    budget = CopyBudget(ROOM * SIZE)
    assert budget.allows("first", SIZE, None)
    assert budget.allows("second", SIZE, None)
    assert not budget.allows("third", SIZE, COPY_S)


def test_pages_are_copied_with_the_embeddings_of_their_image() -> None:
    budget = CopyBudget(ROOM * SIZE)
    assert budget.allows("copied", SIZE, None)
    assert not budget.allows("left", SIZE, COPY_S)

    assert budget.allows_pages("copied", 0.0)
    assert not budget.allows_pages("left", 0.0)
    assert budget.allows_pages("found in memory", 0.0)
    assert not budget.allows("next", SIZE, 50 * COPY_S)  # pays for the copies before it

from collections import Counter

import pytest
import torch

from bench.nano.questions.choices import Colours, Kinds, distinct, random_true, relate, single, weighted_choice
from bench.nano.questions.layout import NONE
from bench.nano.questions.text import colours, relations
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.questions.wording import COMPARISONS, DIRECTIONS
from bench.nano.scenes.objects import COLOURS, load_objects
from tests.nano.small import random_scenes, scenes_of
from tests.tiny import CPU


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def visible(scenes, row):
    """Places of what can be seen, and the scene as `language.py` takes it."""
    places = [place for place, label in enumerate(scenes.labels[row].tolist()) if label >= 0]
    centres = scenes.boxes[row, :, :2].tolist()
    return places, [(int(scenes.labels[row, place]), *centres[place]) for place in places]


# ---- drawing lots


def test_any_of_chooses_evenly_among_what_is_valid():
    valid = torch.tensor([True, False, True, True, False]).expand(6000, 5)
    share = random_true(valid).bincount(minlength=5) / 6000
    assert share.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3, 0], abs=0.03)
    assert not random_true(torch.zeros(10, 5, dtype=torch.bool)).any()


def test_weighted_follows_the_odds_of_what_is_valid():
    valid = torch.tensor([True, True, True, False, True]).expand(8000, 5)
    odds = torch.tensor([1.0, 3.0, 1e-9, 5.0, 0.0])
    share = weighted_choice(valid, odds).bincount(minlength=5) / 8000
    assert share.tolist() == pytest.approx([1 / 4, 3 / 4, 0, 0, 0], abs=0.02)
    last = torch.tensor([False, False, True, False, False]).expand(50, 5)
    assert set(weighted_choice(last, odds).tolist()) == {2}


# ---- relations


@pytest.mark.parametrize("kinds", [4, 60])
def test_relations_are_asked_and_answered_by_the_rules_of_language(kinds):
    scenes = random_scenes(150, seed=kinds, kinds=kinds)
    found, seen = relate(scenes), Counter()
    for row in range(150):
        places, scene = visible(scenes, row)
        empty = [place for place in range(10) if place not in places]
        assert not found.clear[row, :, empty].any()
        for at, place in enumerate(places):
            for d, direction in enumerate(DIRECTIONS):
                expected = relations.relation_answer(scene, at, direction)
                assert bool(found.clear[row, d, place]) == (expected is not None)
                if expected is not None:
                    nearest = int(found.nearest[row, d, place])
                    assert expected == ("Nothing" if nearest == NONE else load_objects()[nearest].name)
                seen["unclear" if expected is None else "nothing" if expected == "Nothing" else "name"] += 1
    assert min(seen[name] for name in ("unclear", "nothing", "name")) > 20


@pytest.mark.parametrize("kinds", [5, 60])
def test_pairs_are_compared_by_the_rules_of_language(kinds):
    scenes = random_scenes(60, seed=kinds, kinds=kinds)
    found, seen = relate(scenes), Counter()
    for row in range(60):
        places, scene = visible(scenes, row)
        for i, first in enumerate(places):
            for j, second in enumerate(places):
                for d, (direction, comparison) in enumerate(zip(DIRECTIONS, COMPARISONS, strict=True)):
                    expected = relations.place_answer(scene, i, j, direction) if i != j else None
                    assert bool(found.apart[row, d, first, second]) == (expected is not None)
                    seen[expected] += 1
                    if expected is not None:
                        lies = bool(found.lies[row, d, first, second])
                        assert expected == ("Yes" if lies else "No")
                        further = scene[i if lies else j][0]
                        assert relations.comparison_answer(scene, i, j, comparison) == load_objects()[further].name
    assert min(seen["Yes"], seen["No"], seen[None]) > 20


def test_the_only_one_of_its_kind():
    labels = torch.tensor([[3, 3, 5, -1, -1], [2, -1, 7, 9, 9]])
    assert single(labels).tolist() == [[False, False, True, False, False], [True, False, True, False, False]]


def test_the_largest_of_its_kind():
    labels = torch.tensor([[3, 3, 3, 5, 6, 6, -1]])
    width = torch.tensor([[0.2, 0.4, 0.1, 0.1, 0.30, 0.31, 0.9]])
    boxes = torch.stack((*[torch.full((1, 7), 0.5)] * 2, width, torch.full((1, 7), 0.2)), 2)
    scenes = scenes_of(labels, boxes)
    assert distinct(scenes).tolist() == [[False, True, False, True, False, False, False]]
    scenes.vertices[0, 3] = 0  # there is nothing to draw
    assert not distinct(scenes)[0, 3]


# ---- colours


def test_colours_are_those_of_language():
    coloured = torch.tensor(sorted({kind for kinds in COLOUR_NOUNS.values() for kind in kinds}))
    labels = coloured[torch.randint(len(coloured), (300, 4))]
    labels = torch.where(torch.rand(300, 4) < 0.4, -1, labels)
    found, seen = Colours(CPU)(labels), Counter()
    for row in range(300):
        scene = [(label, 0.5, 0.5) for label in labels[row].tolist() if label >= 0]
        for n, noun in enumerate(COLOUR_NOUNS):
            expected = colours.colour_answer(scene, noun)
            colour = int(found[row, n])
            assert expected == (None if colour == NONE else COLOURS[colour])
            seen[expected] += 1
    assert len(seen) > 8


# ---- kinds


def test_kinds_are_chosen_among_what_is_there():
    scenes = random_scenes(500)
    asked = Kinds(CPU).asked(scenes.labels, 8)
    assert asked.shape == (8, 500)
    there = (scenes.labels[None] == asked[..., None]).any(2) & (asked >= 0)
    assert 0.72 < there.float().mean() < 0.78
    assert not Kinds(CPU).asked(torch.full((20, 10), -1), 3).ge(260).any()


def test_what_is_absent_is_not_there_and_often_alike():
    kinds = Kinds(CPU)
    scenes = random_scenes(400, kinds=1, empty=0.0)
    present = scenes.labels[:, 0]
    absent = kinds.absent(scenes.labels, present[None])[0]
    known = absent >= 0
    assert 0.34 < 1 - known.float().mean() < 0.46
    assert not (absent == present).any()
    alike = kinds.category[absent[known]] == kinds.category[present[known]]
    assert alike.float().mean() > 0.45


def test_what_is_there_is_never_taken_for_absent():
    kinds = Kinds(CPU)
    # All kinds of the smallest category: another one of the same category cannot be had.
    smallest = (kinds.category == kinds.category.bincount().argmin()).nonzero().flatten()
    labels = smallest.repeat(10)[: max(10, len(smallest))].expand(400, -1)
    absent = kinds.absent(labels, labels[None, :, 0])
    assert not torch.isin(absent[absent >= 0], smallest).any()

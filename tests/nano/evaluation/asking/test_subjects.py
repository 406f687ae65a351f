"""Which things are asked about, and how they are marked."""

import random

import numpy as np
import pytest

from bench.nano.evaluation.asking.subjects import (
    EDGE_SHIFT,
    mask_iou,
    object_at,
    random_pixel,
    random_reference,
    repeated_places,
    shifted_box,
)
from tests.nano.evaluation.oracle import scenes


def test_a_spot_lies_on_a_visible_pixel():
    scene = scenes()[0]
    rng = random.Random(1)
    for place in range(-1, len(scene.objects)):
        assert {object_at(scene, random_pixel(rng, scene, place)) for _ in range(20)} == {place}


def test_a_spot_on_nothing_visible_is_refused():
    with pytest.raises(ValueError, match="99"):
        random_pixel(random.Random(1), scenes()[0], 99)


def test_a_box_that_marks_is_a_little_off_and_in_the_image():
    rng = random.Random(2)
    for _ in range(200):
        box = shifted_box(rng, (0.0, 0.2, 0.5, 1.0))
        shift = np.abs(np.subtract(box, (0.0, 0.2, 0.5, 1.0)))
        assert (shift <= EDGE_SHIFT * np.array([0.5, 0.8, 0.5, 0.8])).all()
        assert 0 <= min(box) <= max(box) <= 1
    assert shift.max() > 0


def test_marks_are_points_and_boxes():
    rng = random.Random(3)
    marks = [random_reference(rng, scenes()[0], 0) for _ in range(200)]
    assert 0.3 < sum(len(one) == 2 for one in marks) / 200 < 0.7


def test_the_edge_of_the_image_belongs_to_its_last_pixel():
    scene = scenes()[0]
    assert object_at(scene, (1.0, 1.0)) == scene.owner[-1, -1]


def test_things_of_which_there_are_several_come_first():
    for scene in scenes():
        kinds = [item.index for item in scene.objects]
        repeated = [place for place, kind in enumerate(kinds) if kinds.count(kind) > 1]
        assert repeated_places(scene) == (repeated or list(range(len(kinds))))


def test_iou_of_masks():
    left, top = np.zeros((4, 4), bool), np.zeros((4, 4), bool)
    assert mask_iou(left, top) == 0
    left[:, :2] = top[:2] = True
    assert mask_iou(left, top) == pytest.approx(4 / 12)

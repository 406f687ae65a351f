from collections import Counter

import numpy as np
import pytest

from bench.nano.scenes.held_out.arrangement import ARRANGEMENTS, Arrangement


def drawn(name, count=30, width=800, height=500):
    """Arrangements of one name."""
    made = (Arrangement.drawn(np.random.default_rng(seed), count, width, height) for seed in range(120))
    return [one for one in made if one.name == name][:10]


def test_arrangements_come_as_often_as_they_should():
    rng = np.random.default_rng(0)
    names = Counter(Arrangement.drawn(rng, 20, 400, 400).name for _ in range(1000))
    for name, share in ARRANGEMENTS.items():
        assert names[name] / 1000 == pytest.approx(share, abs=0.05)
    assert {Arrangement.drawn(rng, 2, 400, 400).name for _ in range(50)} == {"free"}


@pytest.mark.parametrize("name", ARRANGEMENTS)
@pytest.mark.parametrize("place", [None, 0, 29])
def test_corners_keep_boxes_inside_the_image(name, place):
    for arrangement in drawn(name):
        corners = np.array(arrangement.corners(np.random.default_rng(1), place, 90, 60, 40))
        assert corners.shape == (40, 2)
        assert (corners >= 0).all()
        assert (corners + np.array((90, 60)) <= (800, 500)).all()


@pytest.mark.parametrize("name", ["grid", "lines"])
def test_neighbours_are_a_pitch_apart(name):
    for arrangement in drawn(name):
        apart = np.linalg.norm(arrangement.centres[:, None] - arrangement.centres[None], axis=2)
        apart[np.diag_indices(30)] = np.inf
        assert apart.min() >= (0.99 if name == "grid" else 0.2) * arrangement.pitch
        assert np.median(apart.min(axis=1)) < 2.2 * arrangement.pitch


def test_a_heap_is_closer_than_what_lies_anywhere():
    def spread(name):
        rng = np.random.default_rng(3)
        spots = [[one.corners(rng, place, 1, 1, 1)[0] for place in range(30)] for one in drawn(name)]
        return np.mean([np.linalg.norm(np.array(s)[:, None] - np.array(s)[None], axis=2).mean() for s in spots])

    assert spread("heap") < 0.9 * spread("free")

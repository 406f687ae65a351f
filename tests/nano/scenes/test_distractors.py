import numpy as np
import pytest

from bench.nano.scenes import distractors
from bench.nano.scenes.distractors import COUNT, draw_distractors


@pytest.fixture(scope="module")
def drawn():
    return draw_distractors(64)


def test_distractors_fill_their_sprites_but_for_the_rim(drawn):
    assert drawn.shape == (COUNT, 64, 64, 4)
    visible = drawn[..., 3] > 0
    for sprite in visible:
        rows, columns = np.nonzero(sprite)
        assert max(np.ptp(rows), np.ptp(columns)) >= 58
    assert not visible[:, [0, -1]].any()
    assert not visible[:, :, [0, -1]].any()


def test_no_two_are_the_same(drawn):
    assert len({sprite.tobytes() for sprite in drawn}) == COUNT
    assert np.array_equal(drawn, draw_distractors(64))


def test_they_are_lines_and_not_bodies(drawn):
    # Bodies of one colour are objects: circles, squares, triangles.
    opaque = drawn[COUNT // 2 :, ..., 3] > 127
    box = opaque.any(2).sum(1) * opaque.any(1).sum(1)
    assert np.median(opaque.sum((1, 2)) / box) < 0.4


def test_they_can_be_drawn_without_fonts_of_the_system(monkeypatch, tmp_path):
    monkeypatch.setattr(distractors, "FONTS", tmp_path)
    made = draw_distractors(32)
    assert ((made[..., 3] > 127).sum((1, 2)) > 10).all()

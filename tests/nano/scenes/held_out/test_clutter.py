import numpy as np
from PIL import Image

from bench.nano.scenes.held_out.clutter import draw_clutter, sprinkle


def test_clutter_is_visible_and_of_one_colour():
    made = [draw_clutter(np.random.default_rng(seed)) for seed in range(40)]
    assert len({one.tobytes() for one in made}) == 40
    for one in made:
        assert one.shape == (256, 256, 4)
        assert (one[..., 3] > 127).sum() > 200
        assert (one[..., :3] == one[0, 0, :3]).all()


def test_specks_change_little_of_an_image():
    changed = []
    for seed in range(10):
        image = Image.new("RGB", (400, 300), (120, 121, 122))
        sprinkle(np.random.default_rng(seed), image)
        changed.append((np.asarray(image) != (120, 121, 122)).any(axis=2).mean())
    assert 0 < max(changed) < 0.03

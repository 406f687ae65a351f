import itertools
import json

import numpy as np
import pytest
from PIL import Image

from bench.nano.demo.light import crisp, light_corner, shade_flat, shade_standing
from bench.nano.demo.stills import ASSETS, SIZE, STILLS, Item, Still, compose, write_stills
from bench.nano.scenes.objects import index_of
from bench.nano.scenes.sprites import FONT

needs_font = pytest.mark.skipif(not FONT.exists(), reason="needs the emoji font")
TRUTH = json.loads((ASSETS / "stills.json").read_text(encoding="utf-8"))
NAMES = [still.name for still in STILLS]


@pytest.mark.parametrize("name", NAMES)
def test_image_is_small_enough_for_a_readme(name):
    path = ASSETS / f"{name}.png"
    assert path.stat().st_size < 600_000
    with Image.open(path) as image:
        assert (image.size, image.mode) == (SIZE, "RGB")


@pytest.mark.parametrize("still", STILLS, ids=NAMES)
def test_truth_lists_what_is_laid_out(still):
    assert [item["name"] for item in TRUTH[still.name]] == [item.name for item in still.items]


@pytest.mark.parametrize("name", NAMES)
def test_image_stays_in_the_domain(name):
    width, height = SIZE
    items = TRUTH[name]
    assert 1 <= len(items) <= 10
    for item in items:
        assert index_of(item["name"]) is not None
        x0, y0, x1, y1 = item["extent"]
        assert 0.08 <= max((x1 - x0) * width, (y1 - y0) * height) / height <= 0.45
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
    for a, b in itertools.combinations((item["extent"] for item in items), 2):
        shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
        assert shared <= 0.3 * min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))


@pytest.mark.parametrize("still", STILLS, ids=NAMES)
def test_rotation_stays_in_the_domain(still):
    assert all(abs(item.angle) <= 25 for item in still.items)


def test_stored_images_hold_several_bananas_and_tangerines():
    names = {still: [item["name"] for item in items] for still, items in TRUTH.items()}
    assert names["desk"].count("banana") >= 2
    assert names["market"].count("tangerine") >= 4


@needs_font
def test_items_beyond_the_border_are_refused():
    still = Still("desk", lambda *size: Image.new("RGB", size), (Item("cup", 0.01, 0.5, 0.2),), light=(0, 0))
    with pytest.raises(ValueError, match=r"desk: cup at .* reaches beyond the image"):
        compose(still)


@pytest.mark.long
@needs_font
def test_stored_images_are_what_is_drawn(tmp_path):
    write_stills(tmp_path)
    assert json.loads((tmp_path / "stills.json").read_text(encoding="utf-8")) == TRUTH
    for name in NAMES:
        with Image.open(tmp_path / f"{name}.png") as drawn, Image.open(ASSETS / f"{name}.png") as stored:
            assert np.abs(np.subtract(drawn, stored, dtype=np.int16)).mean() < 1


def disc(side=40):
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    sprite = np.zeros((side, side, 4), np.uint8)
    sprite[np.hypot(x, y) < side * 0.4] = (200, 40, 40, 255)
    return sprite


# Eight bits of premultiplied colour cost a little at the rim.
def test_crisp_keeps_colour_and_shape_and_sharpens_the_edge():
    large = np.asarray(crisp(disc()))
    assert large.shape == (160, 160, 4)
    alpha = large[..., 3]
    assert (alpha > 127).sum() == pytest.approx(16 * (disc()[..., 3] > 127).sum(), rel=0.03)
    assert np.abs(large[alpha > 127][:, :3].astype(int) - (200, 40, 40)).max() <= 6
    plain = np.asarray(Image.fromarray(disc()).resize((160, 160), Image.Resampling.BICUBIC))[..., 3]
    assert ((alpha > 20) & (alpha < 235)).sum() < ((plain > 20) & (plain < 235)).sum()


@pytest.mark.parametrize(
    ("lean", "shaded", "lit"), [((0.6, -0.3), (70, 60), (30, 60)), ((-0.6, 0.3), (28, 72), (72, 72))]
)
def test_standing_shadow_leans_away_from_the_light(lean, shaded, lit):
    image = Image.new("RGB", (100, 100), (200, 200, 200))
    tile = Image.new("RGBA", (20, 40), (0, 0, 0, 255))
    shade_standing(image, tile, 40, 25, lean)
    assert image.getpixel(shaded)[0] < 193
    assert image.getpixel(lit)[0] > 198


def test_flat_shadow_falls_to_the_lower_right():
    image = Image.new("RGB", (100, 100), (200, 200, 200))
    shade_flat(image, Image.new("RGBA", (40, 40), (0, 0, 0, 255)), 30, 30)
    assert image.getpixel((72, 72))[0] < image.getpixel((28, 28))[0] - 5


def test_light_corner_is_bright_there_and_dark_far_away():
    lit = light_corner(Image.new("RGB", (60, 40), (150, 150, 150)), (0.0, 0.0))
    assert lit.getpixel((0, 0)) == (157, 156, 152)
    assert lit.getpixel((59, 39)) == (135, 135, 135)

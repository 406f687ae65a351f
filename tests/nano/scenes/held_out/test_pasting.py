import numpy as np
import pytest
from PIL import Image

from bench.nano.scenes.held_out.scene import Canvas, make_tile, visible_bounds


def tile(width, height, alpha=255):
    return Image.new("RGBA", (width, height), (200, 10, 10, alpha))


@pytest.fixture
def canvas():
    return Canvas.on(Image.new("RGB", (100, 50)))


def test_a_box_shrinks_to_what_a_later_object_leaves(canvas):
    canvas.paste(7, tile(20, 20), 10, 10)
    canvas.paste(8, tile(30, 20), 24, 10)
    first, second = canvas.placed()
    assert (first.index, second.index) == (7, 8)
    assert first.box == pytest.approx((0.10, 0.2, 0.24, 0.6))
    assert first.extent == pytest.approx((0.10, 0.2, 0.30, 0.6))
    assert first.visible == pytest.approx(0.7)
    assert second.box == second.extent == pytest.approx((0.24, 0.2, 0.54, 0.6))
    assert second.visible == 1


def test_only_pixels_over_half_opaque_count(canvas):
    edged = np.zeros((10, 12, 4), np.uint8)
    edged[..., 3] = 255
    edged[:, 0, 3] = 127
    edged[:, -1, 3] = 128
    canvas.paste(0, Image.fromarray(edged), 40, 20)
    assert canvas.placed()[0].box == pytest.approx((0.41, 0.4, 0.52, 0.6))


def test_a_faint_object_covers_nothing(canvas):
    canvas.paste(0, tile(10, 10), 0, 0)
    half = Image.new("RGBA", (20, 10), (0, 0, 0, 100))
    half.paste((0, 0, 0, 255), (10, 0, 20, 10))
    canvas.paste(1, half, 0, 0)
    assert canvas.placed()[0].visible == 1


def test_wholly_covered_is_an_error(canvas):
    canvas.paste(0, tile(10, 10), 5, 5)
    canvas.paste(1, tile(12, 12), 4, 4)
    with pytest.raises(ValueError, match="covered"):
        canvas.placed()


@pytest.mark.parametrize("angle", [-25, -7.5, 0, 25])
@pytest.mark.parametrize("side", [24, 90, 300])
def test_longer_visible_side_is_what_was_asked_for(angle, side):
    sprite = np.zeros((128, 128, 4), np.uint8)
    sprite[40:80, 4:124] = (10, 200, 30, 255)
    x0, y0, x1, y1 = visible_bounds(make_tile(sprite, side, angle, False))
    assert max(x1 - x0, y1 - y0) == pytest.approx(side, abs=1, rel=0.01)


def test_turning_is_anticlockwise_and_comes_after_mirroring():
    sprite = np.zeros((64, 64, 4), np.uint8)
    sprite[28:36, 2:62] = (0, 0, 255, 255)
    sprite[28:36, 42:62, :3] = (255, 0, 0)
    turned = np.asarray(make_tile(sprite, 60, 25, False), float)
    mirrored = np.asarray(make_tile(sprite, 60, 25, True), float)

    def red_place(pixels):
        rows, columns = np.nonzero((pixels[..., 0] > 200) & (pixels[..., 3] > 200))
        return columns.mean() / pixels.shape[1], rows.mean() / pixels.shape[0]

    assert red_place(turned) == pytest.approx((0.8, 0.25), abs=0.1)
    assert red_place(mirrored) == pytest.approx((0.2, 0.75), abs=0.1)


def test_colours_do_not_darken_at_soft_edges():
    sprite = np.zeros((128, 128, 4), np.uint8)
    sprite[20:100, 20:100] = (250, 240, 230, 255)
    pixels = np.asarray(make_tile(sprite, 50, 20, False))
    assert pixels[pixels[..., 3] > 40][:, :3].min() > 215


def test_an_empty_sprite_is_an_error():
    with pytest.raises(ValueError, match="no visible pixel"):
        make_tile(np.zeros((8, 8, 4), np.uint8), 24, 0, False)


def test_what_would_hide_most_of_an_object_is_seen_before_it_is_pasted(canvas):
    thin = np.zeros((20, 20, 4), np.uint8)
    thin[:, 8:12] = 255
    canvas.paste(3, Image.fromarray(thin), 10, 10)
    wide = tile(20, 14)
    assert not canvas.leaves_all_visible(tile(20, 16), 5, 10)  # a fifth of it would be left
    assert canvas.leaves_all_visible(wide, 5, 10)
    assert canvas.leaves_all_visible(tile(6, 20), 10, 10)  # nothing of it but of its box
    canvas.paste(None, tile(20, 8), 5, 22)
    assert not canvas.leaves_all_visible(wide, 5, 10)  # both together hide it
    assert (canvas.clutter, len(canvas.placed())) == (1, 1)

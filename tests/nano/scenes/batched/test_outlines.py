import numpy as np
import pytest
from PIL import Image, ImageDraw

from bench.nano.scenes.batched.outlines import LEAST, MOST, iou, outline, outlines, rasterise
from bench.nano.scenes.sprites import SHEET, load_sheet


def drawn(draw_it):
    image = Image.new("L", (128, 128))
    draw_it(ImageDraw.Draw(image))
    return np.array(image)


def fit(points, mask):
    return iou(rasterise(points, 128), mask)


def filled(draw):
    draw.ellipse((10, 30, 110, 90), fill=255)


def ring(draw):
    draw.ellipse((10, 10, 110, 110), fill=255)
    draw.ellipse((30, 30, 90, 90), fill=0)


def star(draw):
    angles = np.arange(14) * np.pi / 7
    radius = np.where(np.arange(14) % 2, 60, 30)
    draw.polygon([*zip(64 + radius * np.cos(angles), 64 + radius * np.sin(angles), strict=True)], fill=255)


def edge_to_edge(draw):
    draw.rectangle((0, 0, 127, 127), fill=255)


@pytest.mark.parametrize("shape", [filled, star, edge_to_edge])
def test_an_outline_fits_the_mask_with_few_vertices(shape):
    alpha = drawn(shape)
    points = outline(alpha)
    assert LEAST <= len(points) <= MOST
    assert fit(points, alpha > 127) > 0.94


def test_a_simple_shape_needs_fewer_vertices_than_a_jagged_one():
    assert len(outline(drawn(filled))) < len(outline(drawn(star)))


def leafy(draw):
    angles = np.arange(80) * np.pi / 40
    radius = np.where(np.arange(80) % 2, 62, 45)
    draw.polygon([*zip(64 + radius * np.cos(angles), 64 + radius * np.sin(angles), strict=True)], fill=255)


def test_fine_structure_is_smoothed():
    line = outline(drawn(leafy))
    assert len(line) < 24
    length = np.hypot(*(np.roll(line, -1, axis=0) - line).T).sum()
    assert length < 2 * np.pi * 62


def test_vertices_lie_where_the_outline_fits_best():
    alpha = drawn(lambda draw: draw.ellipse((4, 4, 124, 124), fill=255))
    line = outline(alpha)
    radius = np.hypot(*(line - 64.5).T)
    assert radius.min() > 60.5  # outside of the circle, so that its edges are as much inside
    assert fit(line, alpha > 127) > 0.96


def test_holes_are_filled():
    alpha = drawn(ring)
    points = outline(alpha)
    assert fit(points, drawn(lambda draw: draw.ellipse((10, 10, 110, 110), fill=255)) > 127) > 0.94


def test_parts_are_joined():
    def halves(draw):
        draw.rectangle((10, 20, 60, 100), fill=255)
        draw.rectangle((68, 20, 118, 100), fill=255)

    points = outline(drawn(halves))
    assert fit(points, drawn(lambda draw: draw.rectangle((10, 20, 118, 100), fill=255)) > 127) > 0.94


def test_vertices_are_in_sprite_units_clockwise():
    sprite = np.zeros((1, 128, 128, 4), np.uint8)
    sprite[0, 32:96, 16:112, 3] = 255
    vertices, count = outlines(sprite)
    assert vertices.shape == (1, MOST, 2)
    line = vertices[0, : count[0]].numpy()
    assert line.min(0).tolist() == pytest.approx([-0.75, -0.5], abs=0.02)
    assert line.max(0).tolist() == pytest.approx([0.75, 0.5], abs=0.02)
    x, y = line.T
    assert np.dot(x, np.roll(y, -1)) > np.dot(y, np.roll(x, -1))
    assert not vertices[0, count[0] :].any()


def test_an_empty_sprite_is_refused():
    with pytest.raises(ValueError, match="no visible pixel"):
        outline(np.full((128, 128), 127, np.uint8))


@pytest.mark.skipif(not SHEET.is_file(), reason="no sheet of sprites")
def test_outlines_fit_the_shipped_objects():
    sprites = load_sheet()[0][::20]
    vertices, counts = outlines(sprites)
    fits = [
        fit((line[:n].double().numpy() + 1) * 64, sprite[..., 3] > 127)
        for sprite, line, n in zip(sprites, vertices, counts.tolist(), strict=True)
    ]
    assert np.mean(fits) > 0.92

import io

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ImageNotFoundError, InputError
from photonlite.results import Detections, Points, Segments
from photonlite.results.drawing.style import PALETTE

COLOR = np.array(PALETTE[0])


def box(x_min, y_min, x_max, y_max, label="mug", score=0.9):
    return {"x_min": x_min, "y_min": y_min, "x_max": x_max, "y_max": y_max, "label": label, "score": score}


def point(x, y, label="mug", score=0.9):
    return {"x": x, "y": y, "label": label, "score": score}


def segment(path, x_min, y_min, x_max, y_max):
    bbox = {"x_min": x_min, "y_min": y_min, "x_max": x_max, "y_max": y_max}
    return {"path": path, "bbox": bbox, "polygon": [], "label": "mug", "score": 0.9}


CIRCLE = "M 1 .5 A .5 .5 0 1 1 0 .5 A .5 .5 0 1 1 1 .5 Z"
HOLE = "M .75 .5 A .25 .25 0 1 0 .25 .5 A .25 .25 0 1 0 .75 .5 Z"


def gray(width, height, value=128):
    return Image.new("RGB", (width, height), (value, value, value))


def has_color(image, color=COLOR):
    """Where an image has exactly a colour: bool [height, width]."""
    return (np.asarray(image) == color).all(axis=2)


def test_edges_are_where_the_box_is():
    line = 4
    where = has_color(Detections([box(0.25, 0.2, 0.75, 0.8)]).plot(gray(400, 300), labels=False, line_width=line))
    rows, columns = np.nonzero(where)
    # The line is centred on the edge: 100..300 across, 60..240 down.
    assert (columns.min(), columns.max() + 1) == (100 - 2, 300 + 2)
    assert (rows.min(), rows.max() + 1) == (60 - 2, 240 + 2)
    assert where[60 - 2 : 60 + 2, 98:302].all()
    assert where[58:242, 300 - 2 : 300 + 2].all()
    assert not where[62:238, 102:298].any()


@pytest.mark.parametrize("limits", [(0.0, 0.0, 1.0, 1.0), (-0.5, -0.2, 1.5, 3.0)])
def test_a_box_at_the_border_is_seen_whole(limits):
    where = has_color(Detections([box(*limits)]).plot(gray(200, 100), labels=False, line_width=3))
    assert where[0:3].all()
    assert where[-2:].all()
    assert where[:, 0:3].all()
    assert where[:, -2:].all()


def test_boxes_of_a_turned_photo_refer_to_the_image_as_people_see_it():
    upright = np.full((40, 80, 3), 128, np.uint8)
    upright[:20] = 30
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(np.rot90(upright))).save(buffer, "PNG", exif=exif)
    stored = Image.open(buffer)
    assert stored.size == (40, 80)
    result = Detections([box(0.5, 0.5, 1.0, 1.0)])
    plotted = result.plot(stored, labels=False)
    assert plotted.size == (80, 40)
    assert plotted.tobytes() == result.plot(upright, labels=False).tobytes()


ALL = [
    Detections([box(0.2, 0.2, 0.8, 0.8)]),
    Points([point(0.5, 0.5)]),
    Segments([segment(CIRCLE + HOLE, 0.1, 0.1, 0.9, 0.9)]),
    Detections([]),
]


@pytest.mark.parametrize("result", ALL, ids=lambda r: repr(r).split(":")[0])
def test_plot_leaves_the_input_alone(result):
    array = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    before = array.copy()
    image = Image.fromarray(array)
    for source in (array, image):
        assert result.plot(source).tobytes() != before.tobytes()
        assert np.array_equal(np.asarray(source), before)


@pytest.mark.long
@pytest.mark.parametrize("result", ALL, ids=lambda r: repr(r).split(":")[0])
@pytest.mark.parametrize("size", [(1, 1), (16, 16), (1, 500), (500, 3), (4000, 3000)])
def test_any_size_works(result, size):
    assert result.plot(gray(*size)).size == size


@pytest.mark.parametrize("result", ALL[:3], ids=lambda r: repr(r).split(":")[0])
@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255), PALETTE[0]])
def test_shapes_stand_out_from_any_background(result, background):
    plotted = np.asarray(result.plot(Image.new("RGB", (320, 240), background), labels=False)).astype(int)
    difference = np.abs(plotted - background).sum(axis=2)
    assert (difference > 150).sum() > 50


@pytest.mark.parametrize("result", ALL[:3], ids=lambda r: repr(r).split(":")[0])
def test_lines_have_a_white_and_a_dark_side(result):
    plotted = np.asarray(result.plot(Image.new("RGB", (640, 480), PALETTE[0]), labels=False)).astype(int)
    assert (plotted.min(axis=2) > 220).sum() > 40
    assert (plotted.max(axis=2) < 110).sum() > 40


@pytest.mark.parametrize("result", ALL[:3], ids=lambda r: repr(r).split(":")[0])
def test_lines_and_labels_grow_with_the_image(result):
    small, large = (has_color(result.plot(gray(*size))).sum() for size in ((320, 240), (1280, 960)))
    assert large > 6 * small


def test_a_dot_has_a_ring_and_is_centred_on_its_point():
    plotted = np.asarray(Points([point(0.25, 0.5)]).plot(gray(400, 300), labels=False)).astype(int)
    rows, columns = np.nonzero((plotted == COLOR).all(axis=2))
    assert (columns.mean() + 0.5, rows.mean() + 0.5) == pytest.approx((100, 150), abs=0.6)
    across = plotted[150, 100:130].sum(axis=1)
    white, dark = across.argmax(), across[4:].argmin() + 4
    assert across[white] > 3 * 230
    assert across[dark] < 3 * 110
    assert white < dark


def test_a_dot_in_the_corner_is_seen():
    where = has_color(Points([point(0.0, 1.0)]).plot(gray(400, 300), labels=False))
    centre = has_color(Points([point(0.5, 0.5)]).plot(gray(400, 300), labels=False))
    assert where.sum() > 0.9 * centre.sum()
    assert where[250:, :50].sum() == where.sum()


def test_a_segment_is_filled_lightly_but_not_in_its_hole():
    plotted = np.asarray(Segments([segment(CIRCLE + HOLE, 0.1, 0.1, 0.9, 0.9)]).plot(gray(400, 400), labels=False))
    assert tuple(plotted[200, 200]) == (128, 128, 128)
    assert tuple(plotted[10, 10]) == (128, 128, 128)
    between = plotted[200, 80].astype(int)
    assert (np.abs(between - 128) > 5).any()
    assert (np.abs(between - COLOR) > 5).any()


def test_outlines_are_smooth():
    plotted = np.asarray(
        Segments([segment("M0 0L1 .37L0 1Z", 0.1, 0.1, 0.9, 0.9)]).plot(gray(300, 300, 0), labels=False)
    )
    # On black a jagged line of orange and white has few shades.
    assert len(np.unique(plotted[..., 0])) > 30


def test_equal_labels_share_a_colour_and_others_do_not():
    objects = [box(0.1, 0.3, 0.3, 0.9, "mug"), box(0.4, 0.3, 0.6, 0.9, "pen"), box(0.7, 0.3, 0.9, 0.9, "mug")]
    plotted = Detections(objects).plot(gray(400, 300), labels=False)
    thirds = np.split(np.asarray(plotted), [133, 266], axis=1)
    first, second, third = ([bool((part == color).all(axis=2).any()) for color in PALETTE[:2]] for part in thirds)
    assert first == third == [True, False]
    assert second == [False, True]


def test_chosen_colour_is_used():
    plotted = Detections([box(0.2, 0.2, 0.8, 0.8)]).plot(gray(200, 200), colors={"mug": "#010203"})
    assert has_color(plotted, (1, 2, 3)).sum() > 100


def test_small_things_are_drawn_above_large_ones():
    objects = [box(0.4, 0.4, 0.6, 0.6, "small"), box(0.4, 0.1, 0.9, 0.9, "large")]
    plotted = Detections(objects).plot(gray(400, 400), labels=False, line_width=4)
    assert tuple(np.asarray(plotted)[200, 160]) == PALETTE[0]


def test_results_of_other_clients_without_label_and_score_can_be_drawn():
    plain = {"x_min": 0.2, "y_min": 0.2, "x_max": 0.8, "y_max": 0.8}
    assert has_color(Detections([plain]).plot(gray(200, 200))).any()
    assert has_color(Points([{"x": 0.5, "y": 0.5}]).plot(gray(200, 200))).any()


def test_results_in_pixels_are_drawn_in_the_same_place():
    result = Detections([box(0.2, 0.2, 0.8, 0.8)])
    assert result.to_pixels(640, 480).plot(gray(320, 240)).tobytes() == result.plot(gray(320, 240)).tobytes()


def test_one_colour_may_be_for_everything():
    boxes = Detections([box(0.2, 0.2, 0.8, 0.8)])
    one = boxes.plot(gray(200, 200), colors="red")
    assert np.array_equal(one, boxes.plot(gray(200, 200), colors={"mug": "#ff0000"}))


def test_errors_are_typed(tmp_path):
    result = Segments([segment("M 0 0 L", 0.1, 0.1, 0.9, 0.9)])
    with pytest.raises(InputError, match="path"):
        result.plot(gray(100, 100))
    with pytest.raises(ImageNotFoundError):
        result.plot(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match="colour"):
        Detections([box(0, 0, 1, 1)]).plot(gray(100, 100), colors={"mug": "mauvish"})


def test_a_name_keeps_its_colour_where_others_are_not_found():
    found = Detections([box(0.25, 0.2, 0.75, 0.8, label="key")], names=("mug", "key"))
    where = has_color(found.plot(gray(200, 100), labels=False), np.array(PALETTE[1]))

    assert where.any()

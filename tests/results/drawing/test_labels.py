import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photonlite.results import Detections, Points
from photonlite.results.drawing import labels
from photonlite.results.drawing.labels import Label, draw_labels, one_line, wrap_text
from photonlite.results.drawing.style import Style, load_font

RED = (200, 30, 30)


def drawn(wanted, size=(640, 480), monkeypatch=None, **options):
    """Draws labels, and tells the chips' boxes and texts."""
    chips = []
    real = labels._draw_chip

    def watch(image, corner, size, text, color, style):
        chips.append(((*corner, corner[0] + size[0], corner[1] + size[1]), text))
        real(image, corner, size, text, color, style)

    monkeypatch.setattr(labels, "_draw_chip", watch)
    image = Image.new("RGB", size, (128, 128, 128))
    draw_labels(image, wanted, Style.of(size, **options))
    return image, chips


def common(a, b):
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)


def area(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def test_a_chip_sits_on_top_of_its_box(monkeypatch):
    _, [(chip, text)] = drawn([Label(("mug 0.90", "mug"), (200, 100, 400, 300), RED)], monkeypatch=monkeypatch)
    assert text == "mug 0.90"
    assert chip[3] <= 100
    assert 100 - chip[3] < 10
    assert abs(chip[0] - 200) < 10


def test_text_is_inside_its_chip(monkeypatch):
    image, [(chip, _)] = drawn([Label(("gjpqy|ÅÊ",), (200, 100, 400, 300), RED)], monkeypatch=monkeypatch)
    changed = (np.asarray(image) != 128).any(axis=2)
    rows, columns = np.nonzero(changed)
    assert chip == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    inside = np.asarray(image)[chip[1] : chip[3], chip[0] : chip[2]]
    assert (inside == 255).all(axis=2).sum() > 40


@pytest.mark.parametrize(
    "place", [(-5, -5, 60, 40), (600, -5, 645, 40), (600, 460, 640, 480), (0, 470, 30, 480), (0, 0, 640, 480)]
)
@pytest.mark.parametrize("beside", [False, True])
def test_chips_stay_inside_the_image(monkeypatch, place, beside):
    _, [(chip, _)] = drawn([Label(("teddy bear 0.90",), place, RED, beside=beside)], monkeypatch=monkeypatch)
    assert min(chip) >= 0
    assert chip[2] <= 640
    assert chip[3] <= 480


def test_chips_of_the_same_target_do_not_overlap(monkeypatch):
    _, chips = drawn([Label(("mug 0.90",), (200, 100, 400, 300), RED)] * 6, monkeypatch=monkeypatch)
    boxes = [box for box, _ in chips]
    assert len(boxes) == 6
    assert all(common(a, b) == 0 for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("beside", [False, True])
def test_chips_in_a_crowd_stay_readable(monkeypatch, beside):
    rng = random.Random(0)
    wanted = []
    for _ in range(80):
        x, y, side = rng.uniform(0, 600), rng.uniform(0, 440), rng.uniform(10, 60)
        wanted.append(Label(("teddy bear 0.90", "teddy bear", "0.90"), (x, y, x + side, y + side), RED, beside=beside))
    _, chips = drawn(wanted, count=80, monkeypatch=monkeypatch)
    boxes = [box for box, _ in chips]
    assert len(boxes) > 30
    for i, box in enumerate(boxes):
        assert sum(common(box, other) for other in boxes[:i]) <= 0.11 * area(box)


def test_chips_keep_off_dots(monkeypatch):
    # The second dot is where the chip of the first would go.
    wanted = [Label(("mug 0.90",), (x, 95, x + 10, 105), RED, beside=True) for x in (100, 140)]
    _, chips = drawn(wanted, monkeypatch=monkeypatch)
    assert len(chips) == 2
    assert all(common(box, label.target) == 0 for box, _ in chips for label in wanted)


def test_a_label_over_an_outline_is_above_its_highest_point(monkeypatch):
    _, [(chip, _)] = drawn([Label(("mug",), (100, 200, 400, 300), RED, top=330.0)], monkeypatch=monkeypatch)
    assert (chip[0] + chip[2]) / 2 == pytest.approx(330, abs=1)


def test_a_long_name_is_cut_with_an_ellipsis(monkeypatch):
    name = "the very long description of a thing " * 300
    _, [(chip, text)] = drawn(
        [Label((f"{name} 0.90", name, "0.90"), (300, 200, 400, 300), RED)], monkeypatch=monkeypatch
    )
    assert text.startswith("the very long")
    assert text.endswith("...")
    assert chip[2] - chip[0] < 400


def test_labels_without_room_are_shortened_or_left_out(monkeypatch):
    wanted = [Label(("banana 0.90", "banana", "0.90"), (10, 10, 50, 40), RED)]
    assert drawn(wanted, (120, 90), monkeypatch=monkeypatch)[1][0][1] == "banana 0.90"
    assert drawn(wanted, (96, 64), monkeypatch=monkeypatch)[1][0][1] == "banana"
    assert drawn(wanted, (80, 56), monkeypatch=monkeypatch)[1][0][1] == "0.90"
    assert drawn(wanted, (64, 48), monkeypatch=monkeypatch)[1] == []


@pytest.mark.parametrize("size", [(96, 64), (160, 110), (320, 200)])
def test_labels_leave_most_of_a_small_image_visible(size, monkeypatch):
    boxes = [(x, y, x + 9, y + 9) for x in range(0, size[0] - 9, 20) for y in range(0, size[1] - 9, 20)]
    chips = drawn([Label(("banana 0.90", "banana"), box, RED) for box in boxes], size, monkeypatch=monkeypatch)[1]
    covered = np.zeros(size, dtype=bool)
    for chip, _ in chips:
        left, top, right, bottom = map(round, chip)
        covered[left:right, top:bottom] = True
    assert 0 < covered.mean() <= 0.3


def test_one_line_has_no_control_characters():
    assert one_line("a\nmug\x00 \t\u202eof tea") == "a mug of tea"


def texts_of(result, monkeypatch, **options):
    chips = []
    monkeypatch.setattr(labels, "_draw_chip", lambda image, corner, size, text, color, style: chips.append(text))
    result.plot(Image.new("RGB", (640, 480)), **options)
    return chips


def test_labels_say_label_and_score_as_asked(monkeypatch):
    result = Points([{"x": 0.5, "y": 0.5, "label": "mug", "score": 0.876}])
    assert texts_of(result, monkeypatch) == ["mug 0.88"]
    assert texts_of(result, monkeypatch, scores=False) == ["mug"]
    tracked = Points([{"x": 0.5, "y": 0.5, "label": "mug", "score": 0.876, "track_id": 3}])
    assert texts_of(tracked, monkeypatch) == ["mug #3 0.88"]
    assert texts_of(Points([{"x": 0.5, "y": 0.5, "label": "mug", "track_id": None}]), monkeypatch) == ["mug"]
    assert texts_of(result, monkeypatch, labels=False) == []
    assert texts_of(Points([{"x": 0.5, "y": 0.5}]), monkeypatch) == []


def test_an_empty_result_says_so(monkeypatch):
    assert texts_of(Detections([]), monkeypatch) == ["nothing found"]
    assert texts_of(Detections([]), monkeypatch, labels=False) == []


FONT = load_font(14, None)


def test_breaks_between_words():
    lines = list(wrap_text("a mug and a lamp on a desk", FONT, 80))
    assert len(lines) > 1
    assert " ".join(lines) == "a mug and a lamp on a desk"


def test_breaks_a_word_that_is_wider_than_the_strip():
    lines = list(wrap_text("so " + "long" * 30 + " indeed", FONT, 100))
    assert all(FONT.getlength(line) <= 100 for line in lines)
    assert "".join(lines).replace(" ", "") == "so" + "long" * 30 + "indeed"


def test_keeps_line_breaks_of_the_text():
    assert list(wrap_text("one\ntwo\n\nthree", FONT, 500)) == ["one", "two", "", "three"]
    assert list(wrap_text("", FONT, 500)) == [""]


@given(st.text(max_size=60), st.integers(5, 300))
def test_no_character_is_lost_and_no_line_too_wide(text, width):
    lines = list(wrap_text(text, FONT, width))
    assert all(FONT.getlength(line) <= width or len(line) == 1 for line in lines)
    kept = [c for c in text if c.isprintable() and not c.isspace()]
    assert [c for line in lines for c in line if not c.isspace()] == kept


@pytest.mark.parametrize("control", ["\x00", "\x1b", "\t", "\u202e"])
def test_control_characters_become_spaces(control):
    assert list(wrap_text(f"a{control}b", FONT, 500)) == ["a b"]

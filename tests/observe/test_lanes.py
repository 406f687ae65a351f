import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photonlite.observe.lanes import Axis, Bars, visible_pieces
from photonlite.observe.trace import Span


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=8))
def test_each_moment_shows_the_span_that_began_last_and_no_two(drawn):
    spans = [Span("host", str(i), float(start), float(start + length), {}) for i, (start, length) in enumerate(drawn)]
    pieces = visible_pieces(spans)

    assert all(earlier.end_s <= later.start_s for earlier, later in pairwise(pieces))
    for moment in np.arange(0.5, 30):
        running = [span for span in spans if span.start_s < moment < span.end_s]
        shown = [piece.span for piece in pieces if piece.start_s < moment < piece.end_s]
        assert len(shown) == bool(running)
        if running:
            latest = max(span.start_s for span in running)
            assert shown[0].start_s == latest
            # Of spans that began together the shortest lies on top.
            assert shown[0].end_s == min(span.end_s for span in running if span.start_s == latest)


def test_a_nested_span_leaves_both_sides_of_the_outer_one():
    outer, inner = Span("host", "commit", 0.0, 10.0, {}), Span("host", "wait", 2.0, 5.0, {})
    assert visible_pieces([inner, outer]) == [(outer, 0.0, 2.0), (inner, 2.0, 5.0), (outer, 5.0, 10.0)]


def painted(bars, width, height=3):
    image = Image.new("RGB", (width + 4, height + 4), (255, 255, 255))
    bars.paste(image, 2, 2, height)
    return np.asarray(image).astype(int)


def test_a_bar_colours_the_part_of_a_pixel_that_it_covers():
    bars = Bars(8)
    bars.add(1.25, 4.5, (0, 0, 0))
    row = painted(bars, 8)[3, 2:10, 0]
    assert row == pytest.approx([255, 64, 0, 0, 128, 255, 255, 255], abs=1)


def test_many_narrow_bars_add_up_to_their_share():
    bars = Bars(2)
    for index in range(1000):
        left = index / 1000
        bars.add(left, left + 0.8e-3, (0, 0, 255))
        bars.add(left + 0.8e-3, left + 1e-3, (255, 0, 0))
    assert painted(bars, 2)[3, 2] == pytest.approx([51, 0, 204], abs=1)


def test_nothing_is_painted_outside_the_row():
    bars = Bars(8)
    bars.add(-100.0, 100.0, (10, 20, 30))
    bars.add(8.0, 9.0, (10, 20, 30))
    pixels = painted(bars, 8)
    inside = np.zeros(pixels.shape[:2], bool)
    inside[2:5, 2:10] = True
    assert (pixels[inside] == (10, 20, 30)).all()
    assert (pixels[~inside] == 255).all()


@pytest.mark.parametrize(
    ("extent", "labels"),
    [
        (40e-6, ["0 us", "5 us", "10 us", "15 us", "20 us", "25 us", "30 us", "35 us", "40 us"]),
        (3.1e-3, ["0.0 ms", "0.5 ms", "1.0 ms", "1.5 ms", "2.0 ms", "2.5 ms", "3.0 ms"]),
        (14e-3, ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms", "12 ms", "14 ms"]),
        (6.0, ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s"]),
    ],
)
def test_ticks_stand_at_round_times_in_one_unit(extent, labels):
    axis = Axis(1000.0, 1000.0 + extent, 186, 1378)
    assert [label for _, label in axis.ticks()] == labels


@pytest.mark.parametrize("exponent", range(-6, 4))
@pytest.mark.parametrize("digit", [1, 1.7, 2, 3.3, 5, 9.9])
def test_ticks_are_evenly_spaced_inside_the_axis_and_labels_differ(exponent, digit):
    axis = Axis(0.0, digit * 10.0**exponent, 0, 1000)
    ticks = axis.ticks()
    offsets = [offset for offset, _ in ticks]
    steps = [later - earlier for earlier, later in itertools.pairwise(offsets)]
    assert offsets[0] == 0
    assert offsets[-1] <= 1000.001
    assert min(steps) > 149
    assert max(steps) - min(steps) < 1e-6
    assert len({label for _, label in ticks}) == len(ticks)

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.errors import SettingsError
from photonlite.skills.tiles import MAX_TILES, OVERLAP, Region, Tile, check_tile, cut_tiles, to_image

SIGHT = 400
sizes = st.tuples(st.integers(80, 3000), st.integers(80, 3000))
grids = st.tuples(st.integers(1, 8), st.integers(1, 8))


def axis(regions: list[Region], first: int) -> list[tuple[int, int, float, float]]:
    """Start and end of each column (0) or row (1) of tiles, and of their cores."""
    spans = {(one.box[first], one.box[first + 2], one.core[first], one.core[first + 2]) for one in regions}
    return sorted(spans)


def check_spans(spans: list[tuple[int, int, float, float]], side: int) -> None:
    assert (spans[0][0], spans[-1][1]) == (0, side)
    assert len({end - start for start, end, _, _ in spans}) == 1
    assert (spans[0][2], spans[-1][3]) == (0, side)
    for before, after in pairwise(spans):
        assert before[3] == after[2]  # cores meet
        assert after[0] < after[2] < before[1]
        assert before[1] - after[0] >= int(OVERLAP * (before[1] - before[0])) - 1


@given(sizes, grids)
def test_tiles_of_a_grid_cover_the_image_evenly_with_the_overlap(size: tuple[int, int], tile: tuple[int, int]) -> None:
    if tile == (1, 1):
        assert cut_tiles(size, tile, SIGHT) == []
        return
    regions = cut_tiles(size, tile, SIGHT)

    assert len(regions) == tile[0] * tile[1]
    check_spans(axis(regions, 0), size[0])
    check_spans(axis(regions, 1), size[1])


@given(sizes, st.integers(8, 3000))
def test_tiles_of_a_side_are_squares_but_where_the_image_is_narrower(size: tuple[int, int], side: int) -> None:
    try:
        regions = cut_tiles(size, side, SIGHT)
    except SettingsError:
        assert side > max(size) or side < 0.4 * max(size)
        return
    assert bool(regions) == (side < max(size))
    for x0, y0, x1, y1 in (one.box for one in regions):
        assert (x1 - x0, y1 - y0) == (min(side, size[0]), min(side, size[1]))
    if regions:
        check_spans(axis(regions, 0), size[0])
        check_spans(axis(regions, 1), size[1])


@given(sizes)
def test_auto_cuts_every_image_into_a_few_tiles(size: tuple[int, int]) -> None:
    regions = cut_tiles(size, "auto", SIGHT)
    columns, rows = len(axis(regions, 0)), len(axis(regions, 1))

    assert len(regions) == columns * rows > 1
    assert max(columns, rows) <= 4
    if max(size) > SIGHT:
        assert (columns > 1) == (size[0] > SIGHT)


def test_a_grid_of_tiles_goes_row_by_row() -> None:
    boxes = [one.box for one in cut_tiles((100, 60), (2, 3), SIGHT)]

    assert boxes[0] == (0, 0, 40, 35)
    assert boxes[1][:2] == (30, 0)
    assert boxes[3] == (0, 25, 40, 60)


@pytest.mark.parametrize(
    ("given_tile", "tile"),
    [("auto", "auto"), ([2, 3], (2, 3)), ((2, 3), (2, 3)), (640, 640), (None, None), ("2x3", (2, 3)), ("640", 640)],
)
def test_a_tile_is_auto_or_rows_and_columns_or_pixels(given_tile: Any, tile: Tile | None) -> None:
    assert check_tile(given_tile) == tile


@pytest.mark.parametrize("tile", [(3,), (3, 3, 3), (0, 3), (3, -1), (1.5, 2), True, 0, -5, 2.5, {}, (True, 2)])
def test_other_tiles_are_refused(tile: Any) -> None:
    with pytest.raises(SettingsError, match=r"tile is .*give 'auto', \(rows, columns\) or the side"):
        check_tile(tile)


@pytest.mark.parametrize("text", ["3x", "0x3", "3x3x3", "-3", "9" * 5000])
def test_other_texts_are_refused_as_tiles(text: str) -> None:
    with pytest.raises(SettingsError, match="give 'auto'"):
        check_tile(text)


@pytest.mark.parametrize(
    ("size", "tile", "message"),
    [
        ((300, 200), 640, "a tile of 640 pixels is larger than the image of 300 x 200"),
        ((3000, 2000), 10, rf"into \d+ tiles, over the limit of {MAX_TILES}"),
        ((3, 2000), (2, 4), "an image of 3 x 2000 pixels has no 2 x 4 tiles"),
    ],
)
def test_tiles_that_do_not_fit_the_image_are_refused_with_the_numbers(
    size: tuple[int, int], tile: Tile, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        cut_tiles(size, tile, SIGHT)


def test_thousands_of_tiles_are_refused_before_there_is_an_image() -> None:
    with pytest.raises(SettingsError, match=f"makes 10000 tiles, over the limit of {MAX_TILES}"):
        check_tile((100, 100))


def test_items_of_a_tile_get_coordinates_of_the_image() -> None:
    region = Region((50, 20, 100, 60), (60, 30, 100, 60))
    box = {"x_min": 0.0, "y_min": 0.5, "x_max": 1.0, "y_max": 1.0, "label": "mug"}
    moved = {"x_min": 0.5, "y_min": 0.4, "x_max": 1.0, "y_max": 0.6, "label": "mug"}

    assert to_image(box, region, (100, 100)) == pytest.approx(moved)
    assert to_image({"x": 0.5, "y": 0.5}, region, (100, 100)) == pytest.approx({"x": 0.75, "y": 0.4})
    outline = to_image({"bbox": box, "polygon": [[0.0, 0.5]], "path": "M 0 0"}, region, (100, 100))
    assert outline["bbox"] == pytest.approx(moved)
    assert (outline["polygon"], outline["path"]) == ([[0.5, pytest.approx(0.4)]], "M 0 0")

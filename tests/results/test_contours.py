import numpy as np
import pytest

from photonlite.results.contours import trace_path
from photonlite.results.rings import fill_mask
from photonlite.results.svg import path_to_rings

WHOLE = {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0}


def filled(path: str, rows: int, columns: int) -> np.ndarray:
    rings = path_to_rings(path, WHOLE)
    return fill_mask([[(x * columns, y * rows) for x, y in ring] for ring in rings], columns, rows)


@pytest.mark.parametrize("seed", range(6))
def test_what_an_outline_fills_is_what_is_above_zero(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, columns = draw.integers(2, 20, 2)
    values = draw.normal(size=(rows, columns)).astype(np.float32)
    values += np.sign(values) * 0.05  # pixels whose centres an outline touches could fall on either side

    assert np.array_equal(filled(trace_path(values), rows, columns), values > 0)


def test_holes_run_in_the_opposite_direction() -> None:
    down, across = np.mgrid[0:64, 0:64] - 31.5
    far = np.hypot(down, across)
    ring = np.minimum(28 - far, far - 10).astype(np.float32)

    path = trace_path(ring)

    assert path.count("M") == path.count("Z") == 2
    assert np.array_equal(filled(path, 64, 64), ring > 0)


def test_an_outline_lies_where_values_cross_zero() -> None:
    values = np.tile(np.array([-3.0, -3.0, 1.0, 1.0], np.float32), (4, 1))

    xs = [float(number) for number in trace_path(values).split()[1:-1:2]]

    assert min(xs) == pytest.approx((1.5 + 0.75) / 4)  # three quarters from the second sample to the third


def test_without_an_inside_there_is_no_outline_and_a_full_mask_fills_its_box() -> None:
    assert trace_path(np.full((4, 4), -1.0, np.float32)) == ""
    assert trace_path(np.zeros((4, 4), np.float32)) == ""
    assert filled(trace_path(np.ones((4, 6), np.float32)), 4, 6).all()

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from photonlite.images.packing import FRACTION_BITS, LanczosTable, lanczos_table

SIZES = st.one_of(st.integers(1, 40), st.integers(1, 1200))
HALF = 1 << (FRACTION_BITS - 1)


def resized(line: npt.NDArray[np.uint8], table: LanczosTable) -> npt.NDArray[np.uint8]:
    """Resize a line of pixels [in] to [out] as the module's first lines say, with room for sums that overflow."""
    out = np.empty(len(table.first), np.uint8)
    for index, (first, count) in enumerate(zip(table.first, table.count, strict=True)):
        total = HALF + int(line[first : first + count].astype(np.int64) @ table.coefficients[index, :count])
        assert -(2**31) <= total < 2**31
        out[index] = min(max(total >> FRACTION_BITS, 0), 255)
    return out


@given(in_size=SIZES, out_size=SIZES, seed=st.integers(0, 2**32), contrast=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_tables_give_the_very_pixels_of_pillow(in_size: int, out_size: int, seed: int, contrast: bool) -> None:
    random = np.random.default_rng(seed)
    line = random.integers(0, 2, in_size, np.uint8) * 255 if contrast else random.integers(0, 256, in_size, np.uint8)

    wanted = Image.fromarray(line[None]).resize((out_size, 1), Image.Resampling.LANCZOS)

    assert np.array_equal(resized(line, lanczos_table(in_size, out_size)), np.asarray(wanted)[0])


@pytest.mark.parametrize(("in_size", "out_size"), [(20_000, 378), (30_000, 2), (31, 11_550), (1, 378), (378, 1)])
def test_extreme_strips_are_pillows_too(in_size: int, out_size: int) -> None:
    line = np.random.default_rng(0).integers(0, 2, in_size, np.uint8) * 255

    wanted = Image.fromarray(line[None]).resize((out_size, 1), Image.Resampling.LANCZOS)

    assert np.array_equal(resized(line, lanczos_table(in_size, out_size)), np.asarray(wanted)[0])


@given(in_size=SIZES, out_size=SIZES)
@settings(deadline=None)
def test_windows_lie_in_the_image_in_order_and_no_sum_leaves_32_bits(in_size: int, out_size: int) -> None:
    table = lanczos_table(in_size, out_size)

    assert (table.first >= 0).all()
    assert (np.diff(table.first) >= 0).all()
    assert (table.count >= 1).all()
    assert (table.first + table.count <= in_size).all()
    assert table.coefficients.shape == (out_size, table.count.max())
    beyond = np.arange(table.coefficients.shape[1]) >= table.count[:, None]
    assert not table.coefficients[beyond].any()
    assert 255 * np.abs(table.coefficients.astype(np.int64)).sum(axis=1).max() + HALF < 2**31


@given(st.integers(1, 500))
def test_equal_lengths_change_nothing(size: int) -> None:
    line = np.random.default_rng(size).integers(0, 256, size, np.uint8)

    assert np.array_equal(resized(line, lanczos_table(size, size)), line)


def test_tables_are_shared_and_cannot_be_written_to() -> None:
    table = lanczos_table(640, 378)

    assert lanczos_table(640, 378) is table
    with pytest.raises(ValueError, match="read-only"):
        table.coefficients[0, 0] = 1


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_an_axis_without_pixels_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(AssertionError, match="at least 1"):
        lanczos_table(*sizes)

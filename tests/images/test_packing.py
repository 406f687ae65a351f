from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from photonlite.image_inputs import UncutImage
from photonlite.images import packing
from photonlite.images.crops import CropSpec, cut_crops
from photonlite.images.decode import rgb_bytes
from photonlite.images.packing import FRACTION_BITS, MOST_BYTES, LanczosTable, lanczos_table, pack_image
from photonlite.images.resize import down_first

SPEC = CropSpec(crop_size=20, patch_size=4, overlap_margin=1, max_crops=6)
PUBLIC = CropSpec(crop_size=378, patch_size=14, overlap_margin=4, max_crops=12)
SIDES = st.integers(1, 90)


def memory(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    return np.full(shape, 99, np.uint8)


def make_image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def packed(width: int, height: int) -> UncutImage:
    found = pack_image(rgb_bytes(make_image(width, height)), (width, height), SPEC, memory)
    assert found is not None
    return found


@given(width=SIDES, height=SIDES)
@settings(max_examples=30)
def test_pixels_come_in_one_piece_as_pillow_gives_them(width: int, height: int) -> None:
    image = make_image(width, height)

    assert rgb_bytes(image) == image.tobytes()


def test_images_of_more_than_one_of_pillows_blocks_too() -> None:
    image = make_image(2500, 2900)  # Pillow keeps 16 MiB in one piece

    assert rgb_bytes(image) == image.tobytes()


@given(width=SIDES, height=SIDES)
@settings(max_examples=60)
def test_pixels_and_filters_lie_where_the_image_says(width: int, height: int) -> None:
    found, cut = packed(width, height), cut_crops(make_image(width, height), SPEC)

    assert found.packed[: 3 * width * height].tobytes() == make_image(width, height).tobytes()
    assert (found.size, found.tiling, found.count) == ((width, height), cut.tiling, len(cut.pixels))
    assert found.down_first[0] == down_first((width, height), (20, 20))
    rows, columns = found.tiling
    wanted = [(width, 20), (height, 20)]
    if found.count > 1:
        wanted += [(width, 12 * columns + 8), (height, 12 * rows + 8)]
        assert found.down_first[1] == down_first((width, height), (12 * columns + 8, 12 * rows + 8))
    for (start, lines, length), (in_size, out_size) in zip(found.filters, wanted, strict=True):
        filters = found.packed[start : start + 4 * lines * length].view(np.int32).reshape(lines, length)
        table = lanczos_table(in_size, out_size)
        assert np.array_equal(filters[0], table.first)
        assert np.array_equal(filters[1:].T, table.coefficients)


@given(width=SIDES, height=SIDES)
@settings(max_examples=30)
def test_parts_are_aligned_and_do_not_overlap(width: int, height: int) -> None:
    found = packed(width, height)

    parts = [(0, 3 * width * height), *((start, 4 * lines * length) for start, lines, length in found.filters)]
    assert all(start % 256 == 0 for start, _ in parts)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(parts))
    assert parts[-1][0] + parts[-1][1] <= len(found.packed)
    assert len(found.packed) % 256 == 0


@pytest.mark.parametrize(
    "size", [(4096, 4096), (1920, 1080), (320, 20_000), (20_000, 320), (400, 9000), (380, 18_000), (65_535, 100)]
)
def test_most_images_are_packed(size: tuple[int, int]) -> None:
    found = pack_image(memoryview(bytes(3 * size[0] * size[1])), size, PUBLIC, memory)

    assert found is not None
    assert len(found.packed) <= MOST_BYTES


@given(in_size=st.integers(1, 20_000), out_size=st.integers(1, 2000))
@settings(max_examples=100)
def test_filters_are_no_larger_than_they_are_taken_for(in_size: int, out_size: int) -> None:
    assert packing._filter(in_size, out_size).nbytes <= packing._filter_bytes(in_size, out_size)


@pytest.mark.parametrize("size", [(1_000_000, 1), (5_000_000, 3), (3, 5_000_000)])
def test_no_filters_are_made_for_images_of_absurd_length(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_filter", None)

    assert pack_image(memoryview(bytes(3 * size[0] * size[1])), size, PUBLIC, memory) is None


@pytest.mark.parametrize(("size", "max_crops"), [((5000, 4096), 12), ((4000, 4000), 100)], ids=["image", "crops"])
def test_what_is_too_large_is_left_to_the_host_and_takes_no_memory(size: tuple[int, int], max_crops: int) -> None:
    spec = CropSpec(crop_size=378, patch_size=14, overlap_margin=4, max_crops=max_crops)

    def none(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        raise AssertionError(f"{shape} bytes were taken")

    assert pack_image(memoryview(bytes(3 * size[0] * size[1])), size, spec, none) is None


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
@settings(max_examples=150)
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

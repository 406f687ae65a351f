from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from photonlite.images.pool import share_tasks
from photonlite.images.resize import RunTasks, down_first, resize, run_in_turn

SIDES = st.integers(1, 24) | st.integers(1, 400)


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


class Canvas:
    """Gathers the blocks of one target, and sees to it that every pixel comes exactly once."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.zeros((height, width, 3), np.uint8)
        self.times = np.zeros((height, width), np.int64)
        self.target = (width, height), self.place

    def place(self, left: int, top: int, block: npt.NDArray[np.uint8]) -> None:
        area = slice(top, top + block.shape[0]), slice(left, left + block.shape[1])
        self.pixels[area] = block
        self.times[area] += 1


def crew(executor: ThreadPoolExecutor, helpers: int) -> tuple[int, RunTasks]:
    return 1 + helpers, partial(share_tasks, executor, helpers)


def hard_image(width: int, height: int) -> Image.Image:
    """Pixels at both ends of their range, where the filter overshoots, and some between them."""
    rng = np.random.default_rng(width * 1009 + height)
    ends = rng.integers(0, 2, (height, width, 3)) * 255
    return Image.fromarray(np.where(rng.random((height, width, 3)) < 0.7, ends, rng.integers(0, 256)).astype(np.uint8))


@pytest.mark.long
@settings(max_examples=150)
@given(SIDES, SIDES, st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=3), st.integers(0, 6))
@example(40, 30, [(40, 30)], 3)  # neither axis changes
@example(40, 30, [(40, 77), (77, 30)], 3)  # one does
@example(640, 480, [(1176, 644), (378, 378)], 1)
@example(480, 640, [(378, 378), (644, 1176)], 1)
@example(1, 400, [(378, 378)], 2)
@example(400, 1, [(378, 378)], 2)
def test_shared_work_gives_pillows_pixels_to_the_last_bit(
    executor: ThreadPoolExecutor, width: int, height: int, sizes: list[tuple[int, int]], helpers: int
) -> None:
    image = hard_image(width, height)
    canvases = [Canvas(*size) for size in sizes]
    resize(image, [canvas.target for canvas in canvases], *crew(executor, helpers))
    for canvas, size in zip(canvases, sizes, strict=True):
        assert (canvas.times == 1).all()
        np.testing.assert_array_equal(canvas.pixels, np.asarray(image.resize(size, Image.Resampling.LANCZOS)))


@pytest.mark.parametrize("size", [(65_535, 40), (40, 65_535), (20_000, 300), (1920, 1080)])
def test_bands_compute_the_filter_of_a_long_side_a_few_times_only(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resize_band, filtered = Image.Image.resize, []

    def counted(image: Image.Image, new: tuple[int, int], *options: Any, **more: Any) -> Image.Image:
        filtered.extend(max(pair) for pair in zip(image.size, new, strict=True) if pair[0] != pair[1])
        return resize_band(image, new, *options, **more)

    monkeypatch.setattr(Image.Image, "resize", counted)
    resize(Image.new("RGB", size), [Canvas(378, 378).target], 8, run_in_turn)

    assert sum(filtered) <= 2 * 2**17
    if max(size) < 8192:
        assert len(filtered) == 2 * 16  # bands for all threads


def passes(image: Image.Image, *sizes: tuple[int, int]) -> bytes:
    for size in sizes:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return image.tobytes()


@pytest.mark.parametrize(
    ("size", "new_size", "down"),
    [
        ((640, 480), (378, 378), False),
        ((480, 640), (378, 378), True),
        ((480, 640), (644, 1176), False),  # nothing is lost
        ((120, 700), (378, 378), True),
        ((50, 60), (40, 40), False),  # the height loses just twice what the width does
        ((50, 61), (40, 40), True),
        ((50, 40), (60, 40), False),
        ((50, 41), (60, 40), True),
    ],
)
def test_the_order_of_the_passes_is_pillows(size: tuple[int, int], new_size: tuple[int, int], down: bool) -> None:
    image = hard_image(*size)
    assert down_first(size, new_size) == down
    column_then_row = passes(image, (size[0], new_size[1]), new_size)
    row_then_column = passes(image, (new_size[0], size[1]), new_size)
    wanted = passes(image, new_size)
    assert (column_then_row if down else row_then_column) == wanted
    if size[1] != new_size[1]:
        assert column_then_row != row_then_column


def test_the_image_is_left_as_it_is(executor: ThreadPoolExecutor) -> None:
    image = hard_image(40, 30)
    before = image.tobytes()
    for helpers in (0, 2):
        resize(image, [Canvas(40, 30).target, Canvas(9, 70).target], *crew(executor, helpers))
    assert image.tobytes() == before


def test_what_a_target_raises_reaches_the_caller(executor: ThreadPoolExecutor) -> None:
    def refuse(left: int, top: int, block: npt.NDArray[np.uint8]) -> None:
        raise MemoryError("no room")

    for helpers in (0, 2):
        with pytest.raises(MemoryError, match="no room"):
            resize(hard_image(40, 30), [((20, 20), refuse)], *crew(executor, helpers))

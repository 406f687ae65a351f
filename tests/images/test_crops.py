import hashlib
import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ConfigError, ImageShapeError
from photonlite.images.crops import CropSpec, ImageCrops, cut_crops, select_tiling
from photonlite.images.decode import load_image
from photonlite.images.pool import share_tasks

GOLDEN = Path(__file__).parents[1] / "golden" / "moondream-tiny"
CASES = json.loads((GOLDEN / "expected.json").read_text())["cases"]
PUBLIC = CropSpec(crop_size=378, patch_size=14, overlap_margin=4, max_crops=12)


def test_lengths_follow_from_the_spec() -> None:
    assert (PUBLIC.grid, PUBLIC.margin, PUBLIC.window) == (27, 56, 266)
    small = CropSpec(crop_size=96, patch_size=8, overlap_margin=0, max_crops=4)
    assert (small.grid, small.margin, small.window) == (12, 0, 96)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop_size": 380}, "380 is not a multiple of the patch size 14"),
        ({"overlap_margin": 14}, "leaves no window in a crop of 27 patches: it must be at most 13"),
        ({"crop_size": 392, "overlap_margin": 14}, "leaves no window in a crop of 28 patches: it must be at most 13"),
        ({"overlap_margin": -1}, "overlap_margin is -1: .* at least 0"),
        ({"max_crops": 0}, "max_crops is 0: .* at least 1"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"crop_size": 378.0}, "crop_size is 378.0"),
        ({"max_crops": True}, "max_crops is True"),
        ({"max_crops": None}, "max_crops is None"),
    ],
)
def test_contradictory_lengths_are_config_errors(changes: dict[str, Any], message: str) -> None:
    lengths = {"crop_size": 378, "patch_size": 14, "overlap_margin": 4, "max_crops": 12}
    with pytest.raises(ConfigError, match=message):
        CropSpec(**(lengths | changes))


@pytest.mark.parametrize(
    ("height", "width", "tiling"),
    [
        (110, 110, (1, 1)),
        (300, 200, (1, 1)),
        (378, 378, (1, 1)),
        (379, 379, (3, 3)),
        (400, 500, (2, 4)),
        (480, 640, (2, 4)),
        (640, 480, (4, 2)),
        (500, 500, (3, 3)),
        (720, 1280, (2, 4)),
        (756, 1008, (3, 4)),
        (768, 1024, (3, 4)),
        (1024, 1024, (3, 3)),
        (1080, 1920, (2, 4)),
        (2048, 1536, (4, 3)),
        (3000, 4000, (2, 4)),
        (1200, 300, (1, 1)),
        (379, 4000, (1, 9)),
        (4000, 400, (9, 1)),
        (1, 1, (1, 1)),
        (1, 5000, (1, 1)),
    ],
)
def test_tilings_of_the_reference(height: int, width: int, tiling: tuple[int, int]) -> None:
    assert select_tiling(height, width, PUBLIC) == tiling


@pytest.mark.parametrize("case", CASES, ids=[case["image"] for case in CASES])
def test_crops_equal_the_reference_exactly(case: dict[str, Any]) -> None:
    crops = cut_crops(load_image(GOLDEN / case["image"]), PUBLIC)
    assert crops.tiling == tuple(case["tiling"])
    # The reference keeps the local crop of tiling (1, 1), which repeats the global one.
    pixels = crops.pixels if len(crops.pixels) > 1 else np.repeat(crops.pixels, 2, axis=0)
    assert pixels.shape == (case["n_crops"], 378, 378, 3)
    np.testing.assert_allclose(pixels.mean((1, 2, 3), np.float64), case["crops_mean"], atol=1e-9)
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == case["crops_sha256"]


def random_specs(count: int) -> list[CropSpec]:
    rng = random.Random(7)
    specs = []
    for _ in range(count):
        patch, grid = rng.randint(1, 16), rng.randint(1, 30)
        specs.append(CropSpec(patch * grid, patch, rng.randint(0, (grid - 1) // 2), rng.randint(1, 16)))
    return specs


def test_tilings_of_any_spec_and_size_stay_within_the_limit() -> None:
    rng = random.Random(8)
    for spec in [PUBLIC, *random_specs(200)]:
        for _ in range(50):
            height, width = (int(spec.crop_size * 2 ** rng.uniform(-3, 6)) + 1 for _ in range(2))
            rows, columns = select_tiling(height, width, spec)
            assert min(rows, columns) >= 1
            windows = [-(-(side - 2 * spec.margin) // spec.window) for side in (height, width)]
            if min(windows) <= 1:
                assert (rows, columns) == (1, 1)
                continue
            if max(windows) <= spec.max_crops * min(windows):
                assert rows * columns <= spec.max_crops
            else:  # the reference's strips
                assert min(rows, columns) == 1
            if windows[0] * windows[1] <= spec.max_crops:  # nothing is shrunk that need not be
                assert rows >= windows[0]
                assert columns >= windows[1]


def test_crops_cover_the_resized_image_and_overlap_by_two_margins() -> None:
    rng = random.Random(9)
    tilings = set()
    for spec in [spec for spec in random_specs(400) if 8 <= spec.crop_size <= 64][:60]:
        width, height = rng.randint(1, 6 * spec.crop_size), rng.randint(1, 6 * spec.crop_size)
        noise = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
        image = Image.fromarray(noise)
        crops = cut_crops(image, spec)
        rows, columns = crops.tiling
        tilings.add(crops.tiling)
        size = (columns * spec.window + 2 * spec.margin, rows * spec.window + 2 * spec.margin)
        sheet = np.asarray(image.resize(size, Image.Resampling.LANCZOS))
        rebuilt = np.full(sheet.shape, 255 - int(sheet[-1, -1, -1]), np.uint8)
        for index, crop in enumerate(crops.pixels[1:] if rows * columns > 1 else crops.pixels):
            y, x = index // columns * spec.window, index % columns * spec.window
            rebuilt[y : y + spec.crop_size, x : x + spec.crop_size] = crop
        np.testing.assert_array_equal(rebuilt, sheet)
        whole = image.resize((spec.crop_size, spec.crop_size), Image.Resampling.LANCZOS)
        np.testing.assert_array_equal(crops.pixels[0], np.asarray(whole))
    assert len(tilings) > 10


@pytest.mark.long
def test_crops_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(10)
    with ThreadPoolExecutor(4) as executor:
        for width, height in [(640, 480), (379, 2000), (300, 200), *rng.integers(1, 1200, (12, 2)).tolist()]:
            image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
            alone = cut_crops(image, PUBLIC)
            for helpers in (1, 2, 4):
                run_tasks = partial(share_tasks, executor, helpers)
                shared = cut_crops(image, PUBLIC, threads=1 + helpers, run_tasks=run_tasks)
                np.testing.assert_array_equal(shared.pixels, alone.pixels)
                assert (shared.tiling, shared.picture_size) == (alone.tiling, alone.picture_size)


def test_crops_are_put_into_the_memory_that_was_handed_in() -> None:
    memory = np.empty(20 * 378 * 378 * 3, np.uint8)
    crops = cut_crops(Image.new("RGB", (640, 480)), PUBLIC, buffer=lambda s: memory[: math.prod(s)].reshape(s))
    assert crops.pixels.base is memory


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (378, 378)])
def test_images_too_thin_to_tile_give_one_crop(size: tuple[int, int]) -> None:
    crops = cut_crops(Image.new("RGB", size, (5, 6, 7)), PUBLIC)
    assert crops.tiling == (1, 1)
    assert crops.pixels.shape == (1, 378, 378, 3)
    assert (crops.pixels == [5, 6, 7]).all()


def test_crops_are_one_contiguous_array_of_bytes() -> None:
    pixels = cut_crops(Image.new("RGB", (640, 480)), PUBLIC).pixels
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable  # torch.from_numpy warns about arrays that are not


def test_other_modes_than_rgb_are_refused() -> None:
    with pytest.raises(ImageShapeError, match="mode RGBA: open the image with load_image"):
        cut_crops(Image.new("RGBA", (8, 8)), PUBLIC)


@pytest.mark.parametrize(("count", "tiling"), [(2, (1, 1)), (4, (2, 2)), (1, (1, 2))])
def test_a_number_of_crops_that_contradicts_the_tiling_is_refused(count: int, tiling: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="crops"):
        ImageCrops(np.zeros((count, 4, 4, 3), np.uint8), tiling)

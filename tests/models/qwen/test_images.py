"""Resizing and patches against the image processor of transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photonlite.errors import ConfigError, ImageShapeError
from photonlite.models.qwen.config import VisionConfig
from photonlite.models.qwen.images import ImageSettings, cut_patches, smart_size
from photonlite.models.qwen.vision import normalize_patches
from tests.models.qwen.tiny import PREPROCESSOR

SIDES = {"2.5": 14, "3": 16}


def vision(patch: int) -> VisionConfig:
    return VisionConfig(dim=32, ff_dim=64, layers=2, heads=2, patch=patch, merge=2, frames=2, out_dim=32)


def settings(kind: str, **changes: Any) -> ImageSettings:
    return ImageSettings.from_dict(PREPROCESSOR[kind] | changes, vision(SIDES[kind]))


def sizes(count: int) -> list[tuple[int, int]]:
    """Widths and heights: squares to strips of 200 to 1, from one pixel to twice what is read."""
    draw = np.random.default_rng(0)
    found = [(1, 200), (200, 1), (1, 1), (2, 399), (28, 28), (42, 14), (48, 16), (1000, 5)]
    while len(found) < count:
        side, ratio = 2 ** draw.uniform(0, 9), 200 ** draw.uniform(-0.5, 0.5)
        width, height = max(1, round(side * ratio)), max(1, round(side / ratio))
        if max(width, height) <= 200 * min(width, height):
            found.append((width, height))
    return found


@pytest.mark.parametrize("kind", PREPROCESSOR)
def test_patches_equal_those_of_transformers(kind: str) -> None:
    # Takes seconds, which a collection need not wait for.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    own, oracle = settings(kind), Qwen2VLImageProcessorPil(**PREPROCESSOR[kind])
    draw = np.random.default_rng(1)
    for width, height in sizes(200):
        image = Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))
        expected = oracle(image, return_tensors="pt")
        found = cut_patches(image, own)
        assert [1, *found.grid] == expected["image_grid_thw"][0].tolist(), (width, height)
        assert found.grid == tuple(2 * side for side in own.positions_of((width, height)))
        patches = normalize_patches(torch.from_numpy(found.patches), own, frames=2)
        assert (patches - expected["pixel_values"]).abs().max() <= 1e-6, (width, height)


@pytest.mark.parametrize(("width", "height"), [(201, 1), (10, 2010), (4001, 20)])
def test_a_strip_beyond_the_ratio_is_refused(width: int, height: int) -> None:
    with pytest.raises(ImageShapeError, match=rf"{width} x {height} pixels.*200 to 1"):
        smart_size(height, width, settings("3"))


def test_an_image_that_is_not_rgb_is_refused() -> None:
    with pytest.raises(ImageShapeError, match="mode L"):
        cut_patches(Image.new("L", (64, 64)), settings("3"))


def test_sides_are_multiples_of_an_embedding_within_the_limits() -> None:
    own = settings("2.5")
    for width, height in sizes(60):
        tall, wide = smart_size(height, width, own)
        assert (tall % 28, wide % 28) == (0, 0)
        if max(width, height) < 50 * min(width, height):  # rounding up to a whole embedding may exceed it elsewhere
            assert tall * wide <= own.max_pixels


def test_settings_are_read_from_both_public_forms() -> None:
    assert (settings("2.5").min_pixels, settings("2.5").max_pixels) == (3136, 56448)
    assert (settings("3").min_pixels, settings("3").max_pixels) == (4096, 65536)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": 16}, "patch_size of the image processor is 16: this model reads images with 14"),
        ({"merge_size": 4}, "merge_size"),
        ({"temporal_patch_size": 1}, "temporal_patch_size"),
        ({"do_resize": False}, "do_resize of the image processor is False"),
        ({"do_normalize": False}, "do_normalize"),
        ({"resample": 2}, "resample of the image processor is 2"),
        ({"rescale_factor": 1.0}, "rescale_factor of the image processor is 1.0"),
        ({"rescale_factor": "x"}, "rescale_factor of the image processor is 'x'"),
        ({"min_pixels": 0, "size": {}}, "image processor.min_pixels is 0"),
        ({"min_pixels": None}, r"has neither min_pixels nor size\.shortest_edge"),
        ({"max_pixels": None, "size": 7}, r"has neither max_pixels nor size\.longest_edge"),
        ({"max_pixels": None, "size": {"longest_edge": -1}}, "image processor.max_pixels is -1"),
        ({"max_pixels": -5}, "image processor.max_pixels is -5"),
        ({"min_pixels": 10**12, "max_pixels": 10**12}, "image processor.min_pixels is 1000000000000: .* to 2147483648"),
        ({"max_pixels": 700}, "at least 784"),
        ({"min_pixels": 60000}, "60000 to 56448"),
        ({"max_pixels": 1e6}, "image processor.max_pixels is 1000000.0"),
        ({"image_mean": [0.5, 0.5]}, "image_mean"),
        ({"image_std": [0.5, 0.5, "x"]}, "image_std"),
        ({"image_std": [0.5, 0.5, 0.0]}, "image_std.*above 0"),
        ({"image_mean": [0.5, 0.5, float("nan")]}, "image_mean"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings("2.5", **changes)

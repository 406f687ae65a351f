from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photonlite.errors import ConfigError, ImageShapeError, ImageTooLargeError
from photonlite.models.paligemma.images import SquareImages, cut_patches
from photonlite.models.paligemma.vision import normalize
from tests.models.paligemma.tiny import noise

SPEC = SquareImages(56, 14)
GOOD: dict[str, Any] = {
    "size": {"height": 56, "width": 56},
    "resample": 3,
    "do_resize": True,
    "rescale_factor": 1 / 255,
}
EXTREME = [(1, 1), (1, 400), (400, 1), (3, 2), (56, 56), (55, 57), (1, 2), (900, 3)]


def sizes(count: int) -> list[tuple[int, int]]:
    draw = np.random.default_rng(5)
    return [(int(width), int(height)) for width, height in np.exp(draw.uniform(0, 6, (count, 2))).astype(int)]


@pytest.mark.parametrize("spec", [SPEC, SquareImages(30, 5)])
def test_pixels_are_those_of_the_public_processor(spec: SquareImages) -> None:
    # Takes seconds, which a collection need not wait for.
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    size = {"height": spec.side, "width": spec.side}
    processor: Any = SiglipImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    for number, shape in enumerate([*EXTREME, *sizes(100)]):
        image = noise(number, shape)
        wanted = processor(images=[image], return_tensors="pt")["pixel_values"][0]

        own = normalize(torch.from_numpy(cut_patches(image, spec).patches))
        split = own.view(spec.grid, spec.grid, 3, spec.patch, spec.patch).permute(2, 0, 3, 1, 4)

        assert torch.allclose(split.reshape(wanted.shape), wanted, atol=1e-6), shape


def test_every_image_takes_the_same_positions() -> None:
    assert {SPEC.positions_of(size) for size in EXTREME} == {(4, 4)}
    assert (SPEC.positions, SPEC.most_patches, SPEC.patch_bytes, SPEC.sight) == (16, 16, 588, 56)


def test_patches_are_cut_from_rgb_alone() -> None:
    with pytest.raises(ImageShapeError, match="not from mode L"):
        cut_patches(Image.new("L", (20, 20)), SPEC)


def test_a_strip_that_does_not_fit_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resize(*arguments: Any) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "resize", resize)
    with pytest.raises(ImageTooLargeError, match="an image of 1 x 9 pixels"):
        cut_patches(noise(0, (1, 9)), SPEC)


@pytest.mark.parametrize("raw", [GOOD, {}])
def test_a_processor_that_does_the_same_is_accepted(raw: dict[str, Any]) -> None:
    SPEC.check(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"size": {"height": 224, "width": 224}},
        {"resample": 2},
        {"image_mean": [0.48, 0.46, 0.41]},
        {"image_std": [1, 1, 1]},
        {"do_normalize": False},
        {"rescale_factor": 1.0},
    ],
)
def test_a_processor_that_does_something_else_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        SPEC.check(GOOD | change)

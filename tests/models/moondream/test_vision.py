import math
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.models.moondream.config import VisionConfig
from photonlite.models.moondream.vision import VisionEncoder
from tests.models.moondream.golden import CASES, TOLERANCE, crops, embeddings, expected
from tests.tiny import tiny_config, tiny_model


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_those_of_the_reference(case: dict[str, Any]) -> None:
    assert crops(case).tiling == tuple(case["tiling"])

    reference = expected(case, "image_embeddings")
    rounding = reference.abs() * 2**-11  # the file holds float16
    assert ((embeddings(case) - reference).abs() <= TOLERANCE + rounding).all()


def encoder(grid: int, margin: int, depth: int = 3) -> VisionEncoder:
    config = VisionConfig(
        enc_dim=depth,
        enc_patch_size=2,
        enc_n_heads=1,
        crop_size=2 * grid,
        overlap_margin=margin,
        enc_n_layers=0,
        enc_ff_dim=1,
        proj_out_dim=4,
        proj_inner_dim=4,
    )
    return VisionEncoder(config)


def paste(features: Tensor, tiling: tuple[int, int], margin: int) -> Tensor:
    """Stitch by definition: paste every crop at its offset without its inner margins; each cell is written once."""
    rows, columns = tiling
    grid, window = features.shape[1], features.shape[1] - 2 * margin
    out = torch.full((rows * window + 2 * margin, columns * window + 2 * margin, features.shape[-1]), math.nan)
    for i in range(rows):
        for j in range(columns):
            for y in range(margin if i else 0, grid - (margin if i < rows - 1 else 0)):
                for x in range(margin if j else 0, grid - (margin if j < columns - 1 else 0)):
                    assert out[i * window + y, j * window + x].isnan().all()
                    out[i * window + y, j * window + x] = features[i * columns + j, y, x]
    assert not out.isnan().any()
    return out


@pytest.mark.parametrize("tiling", [(1, 2), (2, 1), (2, 4), (3, 3), (1, 5)])
@pytest.mark.parametrize(("grid", "margin"), [(5, 1), (6, 2), (7, 0)])
def test_crops_are_stitched_without_their_inner_margins(tiling: tuple[int, int], grid: int, margin: int) -> None:
    features = torch.randn(math.prod(tiling), grid, grid, 3)

    stitched = encoder(grid, margin).stitch(features.flatten(1, 2), tiling)

    assert torch.equal(stitched, paste(features, tiling, margin))


@pytest.mark.parametrize(
    ("size", "first_bins"),
    [
        (27, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (46, [(0, 2), (1, 4), (3, 6), (5, 7)]),
        (65, [(0, 3), (2, 5), (4, 8), (7, 10)]),
        (84, [(0, 4), (3, 7), (6, 10)]),
    ],
)
def test_pooling_bins_overlap_as_in_the_reference(size: int, first_bins: list[tuple[int, int]]) -> None:
    ramp = torch.arange(size, dtype=torch.float32)[:, None, None].expand(size, 27, 1)

    pooled = encoder(27, 4).pool(ramp).view(27, 27)[:, 0]

    means = [(start + stop - 1) / 2 for start, stop in first_bins]
    assert pooled[: len(means)].tolist() == pytest.approx(means)


def test_a_patch_is_channel_major_and_patches_go_row_by_row() -> None:
    module = encoder(2, 0)
    pixels = torch.arange(2 * 4 * 4 * 3).remainder(256).to(torch.uint8).view(2, 4, 4, 3)

    patches = module._patches(pixels)

    assert patches.shape == (2, 4, 12)
    for row in range(2):
        for column in range(2):
            block = pixels[1, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            wanted = (block.permute(2, 0, 1).flatten().float() / 255 - 0.5) / 0.5
            assert torch.equal(patches[1, 2 * row + column], wanted)


def test_with_one_tile_the_global_features_serve_as_local_ones() -> None:
    module = tiny_model(tiny_config()).vision
    features = torch.randn(1, 25, 12)

    once = module.project(features, (1, 1))

    assert torch.allclose(once, module.proj_mlp(torch.cat((features[0], features[0]), dim=-1)))


def test_global_features_come_before_local_ones() -> None:
    module = tiny_model(tiny_config()).vision
    features = torch.randn(3, 25, 12)
    local = module.pool(module.stitch(features[1:], (1, 2)))

    assert torch.allclose(module.project(features, (1, 2)), module.proj_mlp(torch.cat((features[0], local), dim=-1)))


def test_crops_do_not_see_each_other() -> None:
    module = tiny_model(tiny_config()).vision
    pixels = torch.randint(0, 256, (3, 20, 20, 3), dtype=torch.uint8)

    together = module.encode(pixels)

    assert torch.allclose(together[1], module.encode(pixels[1:2])[0], atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-2)

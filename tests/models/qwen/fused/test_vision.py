import copy

import pytest
import torch
from torch import Tensor

from bench.bubble.subjects import fill_randomly
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.fused.vision import FusedTower
from photonlite.models.qwen.vision import VisionTower
from tests.models.qwen.tiny import CASES, reference_model, settings

GRIDS = [[(8, 12)], [(4, 4), (20, 6), (2, 2)]]
card = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


def tower_of(case: str) -> VisionTower:
    config = QwenConfig.from_dict(reference_model(case).config.to_dict())
    tower = VisionTower(config.vision, config.version, settings(case, config)).eval().requires_grad_(False)
    fill_randomly(tower, 1)
    return tower


def patches_of(tower: VisionTower, grids: list[tuple[int, int]]) -> Tensor:
    count = sum(rows * columns for rows, columns in grids)
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, tower.images.patch_bytes), dtype=torch.uint8, generator=draw)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_embeddings_are_those_of_the_plain_tower(case: str, grids: list[tuple[int, int]]) -> None:
    plain = tower_of(case).double()
    patches = patches_of(plain, grids)

    fused = FusedTower(plain)

    torch.testing.assert_close(fused.encode(patches, grids), plain.encode(patches, grids), rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_images_of_another_size_are_not_placed_as_the_last_ones() -> None:
    plain = tower_of("3").double()
    fused = FusedTower(plain)
    for grids in (*GRIDS, [(12, 8)], *GRIDS):
        patches = patches_of(plain, grids)
        torch.testing.assert_close(fused.encode(patches, grids), plain.encode(patches, grids), rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@card
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_rounding_costs_no_more_than_in_the_plain_tower(case: str) -> None:
    exact = tower_of(case).double()
    half = copy.deepcopy(exact).to("cuda", torch.bfloat16)
    for grids in GRIDS:
        patches = patches_of(exact, grids)
        truth = copy.deepcopy(half).double().encode(patches.cuda(), grids)
        plain = error(half.encode(patches.cuda(), grids), truth)
        assert error(FusedTower(half).encode(patches.cuda(), grids), truth) < 1.2 * plain

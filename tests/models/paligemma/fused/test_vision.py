import copy

import pytest
import torch
from torch import Tensor

from bench.bubble.subjects import fill_randomly
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.paligemma.config import VisionConfig
from photonlite.models.paligemma.fused.vision import FusedTower
from photonlite.models.paligemma.vision import VisionTower

CONFIGS = {
    "heads of 8": VisionConfig(dim=16, ff_dim=22, layers=2, heads=2, side=42, patch=14, norm_eps=1e-6),
    "heads of 7": VisionConfig(dim=21, ff_dim=16, layers=3, heads=3, side=28, patch=7, norm_eps=1e-5),
    "one layer": VisionConfig(dim=32, ff_dim=8, layers=1, heads=1, side=8, patch=4, norm_eps=1e-6),
}
REAL = VisionConfig(dim=1152, ff_dim=4304, layers=2, heads=16, side=448, patch=14, norm_eps=1e-6)


def tower_of(config: VisionConfig, out_dim: int = 24) -> VisionTower:
    tower = VisionTower(config, out_dim).eval().requires_grad_(False)
    fill_randomly(tower, 1)
    return tower


def patches_of(config: VisionConfig, images: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    size = images * config.grid**2, 3 * config.patch**2
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("wider", [0, 1, 8])
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_embeddings_are_those_of_the_plain_tower(name: str, wider: int, images: int) -> None:
    config = CONFIGS[name]
    plain = tower_of(config).double()
    patches, grids = patches_of(config, images), [(config.grid, config.grid)] * images

    fused = FusedTower(plain, head_size=config.dim // config.heads + wider)

    wanted = plain.encode(patches, grids)
    torch.testing.assert_close(fused.encode(patches, grids), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fused.encoding(grids)(patches), wanted, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_an_incomplete_image_is_left_out() -> None:
    config = CONFIGS["heads of 8"]
    plain, patches = tower_of(config), patches_of(config, 2)
    fused = FusedTower(plain)
    for tower in (fused, plain):
        found = tower.encode(patches[:-1], [(1, len(patches) - 1)])
        torch.testing.assert_close(found, fused.encode(patches[: len(patches) // 2], [(3, 3)]))


@torch.inference_mode()
def test_products_in_8_bits_stay_near_the_plain_tower() -> None:
    config = VisionConfig(dim=48, ff_dim=96, layers=4, heads=4, side=42, patch=14, norm_eps=1e-6)
    plain, patches = tower_of(config), patches_of(config, 2)
    found = FusedTower(plain, fp8=True).encode(patches, [(3, 3)] * 2)
    assert 0.002 < error(found, plain.encode(patches, [(3, 3)] * 2)) < 0.08


def test_joined_weights_are_there_once() -> None:
    plain = tower_of(CONFIGS["heads of 8"])
    FusedTower(plain)
    for block in plain.blocks:
        memory = {layer.weight.untyped_storage().data_ptr() for layer in (block.q, block.k, block.v)}
        assert len(memory) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("head_size", [None, 72, 80])
@pytest.mark.parametrize("images", [1, 2])
@torch.inference_mode()
def test_on_a_card_rounding_costs_no_more_than_in_the_plain_tower(images: int, head_size: int | None) -> None:
    half = tower_of(REAL, 2304).to("cuda", torch.bfloat16)
    patches, grids = patches_of(REAL, images).cuda(), [(REAL.grid, REAL.grid)] * images
    truth = copy.deepcopy(half).float().encode(patches, grids)
    plain = error(half.encode(patches, grids), truth)
    assert error(FusedTower(half, head_size=head_size).encode(patches, grids), truth) < 1.2 * plain

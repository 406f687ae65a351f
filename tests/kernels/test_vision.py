import importlib.util
import math

import pytest
import torch

from photonlite.kernels.reference import vision as reference
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.kernels.vision import join_views, patch_rows
from tests.conftest import Ended


def test_a_patch_is_channel_major_with_zeros_behind() -> None:
    crops = torch.arange(2 * 4 * 4 * 3).remainder(256).to(torch.uint8).view(2, 4, 4, 3)
    table = torch.arange(256.0) + 1000

    rows = patch_rows(crops, table, 2, 16)

    assert rows.shape == (8, 16)
    block = crops[1, 2:4, 0:2]  # the third patch of the second crop
    assert rows[6].tolist() == [*(block.permute(2, 0, 1).flatten() + 1000.0).tolist(), 0, 0, 0, 0]


@pytest.mark.parametrize(("tiling", "grid", "margin"), [((1, 2), 3, 1), ((2, 2), 5, 1), ((3, 1), 4, 0)])
def test_a_bin_is_the_average_of_the_cells_it_covers(tiling: tuple[int, int], grid: int, margin: int) -> None:
    rows, columns = tiling
    window = grid - 2 * margin
    height, width = rows * window + 2 * margin, columns * window + 2 * margin
    sheet = torch.randn(height, width, 2, dtype=torch.float64)
    local = [sheet[i * window :, j * window :][:grid, :grid] for i in range(rows) for j in range(columns)]
    overall = torch.randn(grid, grid, 2, dtype=torch.float64)

    joined = join_views(torch.stack((overall, *local)).flatten(1, 2), tiling, grid, margin).view(grid, grid, 4)

    assert torch.equal(joined[..., :2], overall)
    for i in range(grid):
        for j in range(grid):
            top, bottom = i * height // grid, math.ceil((i + 1) * height / grid)
            left, right = j * width // grid, math.ceil((j + 1) * width / grid)
            torch.testing.assert_close(joined[i, j, 2:], sheet[top:bottom, left:right].mean((0, 1)))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_vision")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("grid", "patch", "width"), [(27, 14, 592), (5, 4, 48)])
def test_patches_are_those_of_the_reference_bit_for_bit_on_the_device(grid: int, patch: int, width: int) -> None:
    torch.manual_seed(0)
    crops = torch.randint(0, 256, (3, grid * patch, grid * patch, 3), dtype=torch.uint8, device="cuda")
    table = torch.randn(256, device="cuda", dtype=torch.bfloat16)

    found = patch_rows(crops, table, patch, width)

    assert torch.equal(found, reference.patch_rows(crops, table, patch, width))


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("tiling", [(1, 1), (1, 12), (3, 4), (2, 1)])
@pytest.mark.parametrize(("grid", "margin", "dim"), [(27, 4, 1152), (5, 0, 24)])
def test_views_are_joined_as_in_the_reference_on_the_device(
    tiling: tuple[int, int], grid: int, margin: int, dim: int
) -> None:
    torch.manual_seed(1)
    count = 1 if tiling == (1, 1) else 1 + math.prod(tiling)
    features = torch.randn(count, grid * grid, dim, device="cuda", dtype=torch.bfloat16)

    found = join_views(features, tiling, grid, margin)

    torch.testing.assert_close(found, reference.join_views(features, tiling, grid, margin))

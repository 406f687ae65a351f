"""Runs the kernels around the image encoder on the CPU by Triton's interpreter; see `interpreter.py`."""

import math

import torch

from photonlite.kernels import vision
from photonlite.kernels.reference import vision as reference


def main() -> None:
    torch.manual_seed(0)
    table = torch.randn(256)
    for count, grid, patch, width in ((1, 3, 2, 12), (2, 5, 4, 50), (2, 2, 14, 592)):
        crops = torch.randint(0, 256, (count, grid * patch, grid * patch, 3), dtype=torch.uint8)
        case = (crops, table, patch, width)
        assert torch.equal(vision.patch_rows(*case), reference.patch_rows(*case))
    for tiling in ((1, 1), (1, 2), (3, 1), (2, 3)):
        for grid, margin, dim in ((3, 1, 20), (5, 1, 7), (4, 0, 16)):
            count = 1 + math.prod(tiling) * (tiling != (1, 1))
            views = (torch.randn(count, grid * grid, dim), tiling, grid, margin)
            torch.testing.assert_close(vision.join_views(*views), reference.join_views(*views))
    print("interpreted kernels agree")

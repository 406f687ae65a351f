"""Runs the kernels of `kernels.resize` on the CPU by Triton's interpreter; see `tests/kernels/interpreter.py`."""

import torch

from photonlite.images.crops import CropSpec
from photonlite.kernels import resize
from tests.kernels.images import case, noise, pillows

SPEC = CropSpec(crop_size=24, patch_size=4, overlap_margin=1, max_crops=6)
SIZES = [(61, 37), (20, 24), (24, 24), (9, 110), (24, 90), (140, 31), (50, 40), (1, 1)]


def main() -> None:
    for number, size in enumerate(SIZES):
        image = noise(*size)
        resize.LINES, resize.COLUMNS = ((8, 64), (4, 16), (16, 32))[number % 3]
        order = bool(number & 1), bool(number & 2)
        arguments = case(image, SPEC, order)
        resize.cut_image(*arguments)
        assert torch.equal(arguments[5], pillows(image, SPEC, order)), (size, order)
    print("interpreted kernels agree")

"""Runs the kernel that embeds sampled tokens on the CPU by Triton's interpreter; see `interpreter.py`."""

import itertools

import torch

from photonlite.kernels.embedding import embed_pending
from photonlite.kernels.reference import embedding as reference
from tests.kernels.inputs import random_case


def main() -> None:
    torch.manual_seed(0)
    for count, (dim, frequencies), kinds in itertools.product(
        (1, 5, 21), ((24, 3), (130, 40), (64, 100)), ((0, 1, 2), (0,), (2,))
    ):
        case = random_case(count, dim, frequencies, torch.float32, kinds)
        wanted = reference.embed_pending(*case)
        torch.testing.assert_close(embed_pending(*case), wanted, rtol=1e-5, atol=1e-4)
    print("interpreted kernels agree")

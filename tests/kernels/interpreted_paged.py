"""Runs the Triton kernels on the CPU by Triton's interpreter; see `interpreter.py`."""

import itertools

import torch

from photonlite.kernels import paged_attention
from photonlite.kernels.reference import attention as reference
from tests.kernels.pages import in_fp8, scattered

SHAPES = [
    # heads, key/value heads, head size, page size
    (3, 1, 8, 4),
    (4, 4, 24, 16),
    (6, 2, 40, 1),
    (2, 2, 64, 32),
]
LENGTHS = [[0, 7, 300], [130]]


def main() -> None:
    torch.manual_seed(0)
    for number, (lengths, shape) in enumerate(itertools.product(LENGTHS, SHAPES)):
        dtype, tolerance = ((torch.float32, 1e-5), (torch.float16, 2e-3))[number // 2 % 2]
        case = scattered(lengths, *shape, dtype)
        # Rows in one part, whose programs go through several blocks, and rows in many parts.
        paged_attention.PROGRAMS = (1, 64)[number % 2]
        out = paged_attention.paged_attention(*case)
        torch.testing.assert_close(out, reference.paged_attention(*case), atol=tolerance, rtol=tolerance)
        small = in_fp8(case, 0.25, 0.5)
        out = paged_attention.paged_attention(*small, 0.25, 0.5)
        wanted = reference.paged_attention(*small, 0.25, 0.5)
        torch.testing.assert_close(out, wanted, atol=tolerance, rtol=tolerance)
    print("interpreted kernels agree")

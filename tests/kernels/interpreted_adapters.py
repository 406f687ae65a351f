"""Runs the kernels of adapters on the CPU by Triton's interpreter; see `interpreter.py`."""

import torch

from photonlite.kernels import adapters as module
from photonlite.kernels.adapters import RowTerms
from photonlite.kernels.reference import adapters as reference
from photonlite.kernels.reference import row_adapters as row_reference
from tests.kernels.adapter_cases import CASES, adapter_case, block_terms

SIZES = 72, 40, 150, 24
# slots of rows; the last ones have tiles of several slots, of one, and of none
ROWS = [[2, 0, 0, 3, 2], [0] * 20, [1] * 30 + [0] * 40 + [3, 1, 0, 2] * 20 + [0] * 64 + [2] * 30]


def check_block(slots: list[int]) -> None:
    """All terms of a block, as prompts add them: with one index of any stride, and rows without an adapter."""
    dim, qkv, inner, attended = SIZES
    terms, columns = block_terms(3, 6, SIZES, torch.float32)
    index = torch.tensor([[9, slot] for slot in slots], dtype=torch.int32)[:, 1]
    x, cat = torch.randn(len(slots), dim), torch.randn(len(slots), attended + inner)
    low, wanted_low = module.empty_low(len(slots), columns, x).fill_(torch.nan), torch.empty(len(slots), columns)
    for given, read, width, add in ((x, "of_norm", qkv + inner, "into"), (cat, "of_inside", dim, "out")):
        module.shrink(given, RowTerms(index, low, terms[read]))
        row_reference.shrink(given, RowTerms(index, wanted_low, terms[read]))
        y = torch.randn(len(slots), width)
        wanted, before = y.clone(), y.clone()
        module.expand(y, RowTerms(index, low, terms[add]))
        row_reference.add_terms(wanted, RowTerms(index, wanted_low, terms[add]))
        torch.testing.assert_close(y, wanted, atol=1e-4, rtol=1e-4)
        assert torch.equal(y[index == 0], before[index == 0])
        assert not len(y[index > 0]) or not torch.allclose(y[index > 0], before[index > 0], atol=0.1)


def main() -> None:
    torch.manual_seed(0)
    for case in CASES:
        y, x, rows, stack = adapter_case(*case)
        wanted = y.clone()
        reference.add_adapters(wanted, x, rows, stack)
        module.add_adapters(y, x, rows, stack)
        torch.testing.assert_close(y, wanted, atol=1e-4, rtol=1e-4)
    for slots in ROWS:
        check_block(slots)
    print("the kernels agree")

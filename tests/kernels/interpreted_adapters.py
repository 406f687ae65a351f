"""Runs the kernels of adapters on the CPU by Triton's interpreter; see `interpreter.py`."""

import torch

from photonlite.kernels import adapters as module
from photonlite.kernels.reference import adapters as reference
from tests.kernels.adapter_cases import CASES, adapter_case


def main() -> None:
    torch.manual_seed(0)
    for case in CASES:
        y, x, rows, stack = adapter_case(*case)
        wanted = y.clone()
        reference.add_adapters(wanted, x, rows, stack)
        module.add_adapters(y, x, rows, stack)
        torch.testing.assert_close(y, wanted, atol=1e-4, rtol=1e-4)
    print("the kernels agree")

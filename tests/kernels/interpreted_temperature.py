"""Runs the kernel of temperatures on the CPU by Triton's interpreter; see `interpreter.py`."""

import torch

from photonlite.kernels import triton_utils
from photonlite.kernels.reference import temperature as reference
from photonlite.kernels.temperature import temperatures

# rows, heads, columns
SIZES = [(1, 3, 72), (5, 2, 700), (17, 5, 120), (64, 1, 513), (70, 4, 1200)]


def main() -> None:
    torch.manual_seed(0)
    for number, (rows, heads, columns) in enumerate(SIZES):
        qkv = (torch.randn(rows, columns + 4) * 2)[:, 4:]
        weight, alpha = torch.randn(2 * heads, columns) / columns**0.5, torch.randn(heads)
        table = torch.randint(0, 90, (rows, 3)).int()
        case = qkv, weight, alpha, torch.arange(1, 91).log(), table[:, 1]
        for tanh in (False, True)[: 1 + number % 2]:
            found, wanted = temperatures(*case, tanh_gelu=tanh), reference.temperatures(*case, tanh_gelu=tanh)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        assert not triton_utils.arrival_counters(torch.device("cpu"), 1).any(), "counters are left for the next launch"
    print("interpreted kernels agree")

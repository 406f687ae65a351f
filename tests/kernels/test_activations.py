import pytest
import torch
from torch.nn import functional

from photonlite.kernels.activations import gelu_linear, swiglu
from photonlite.kernels.reference import norms as reference
from photonlite.kernels.triton_utils import HAS_TRITON


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 8, 16)])
def test_it_is_gelu_of_the_biased_product(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    rows, columns, depth = shape
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)

    wanted = functional.gelu((x @ weight.T + bias).double(), approximate="tanh")

    torch.testing.assert_close(gelu_linear(x, weight, bias).double(), wanted, rtol=1e-4, atol=1e-5)


def test_the_first_half_gates_the_second() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 14)
    wanted = x[:, :7].double() / (1 + torch.exp(-x[:, :7].double())) * x[:, 7:]
    torch.testing.assert_close(swiglu(x).double(), wanted, rtol=1e-5, atol=1e-6)
    assert (swiglu(x.bfloat16()) == wanted.bfloat16()).float().mean() > 0.4  # inputs are rounded, results once more
    wanted = functional.gelu(x[:, :7].double(), approximate="tanh") * x[:, 7:]
    torch.testing.assert_close(swiglu(x, gelu=True).double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("shape", [(1, 6144), (740, 12288), (70_000, 42)])
def test_a_gate_on_a_card_is_that_of_the_reference(shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    x = torch.randn(shape[0], 2 * shape[1] + 8, device="cuda").bfloat16()[:, 8:]
    for gelu in (False, True):
        torch.testing.assert_close(swiglu(x, gelu=gelu), reference.swiglu(x, gelu=gelu), rtol=2**-7, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(729, 4304, 1152), (9477, 4304, 1152), (729, 8192, 2304), (1, 16, 8)])
def test_on_a_card_it_is_the_tanh_approximation_rounded_once(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    rows, columns, depth = shape
    x = torch.randn(rows, depth, device="cuda").bfloat16()
    weight = (torch.randn(columns, depth, device="cuda") * depth**-0.5 * 2).bfloat16()
    bias = torch.randn(columns, device="cuda").bfloat16()
    exact = functional.gelu(functional.linear(x.double(), weight.double(), bias.double()), approximate="tanh")

    found = gelu_linear(x, weight, bias).double()

    # The tail that tells the tanh from the exact form is 4e-4 deep: absolute, where bfloat16 is finer than that.
    small = exact.abs() < 0.01
    assert ((found - exact)[small].abs() < 2e-4).all()
    assert (found - exact).norm() / exact.norm() < 3e-3

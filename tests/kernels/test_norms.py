import importlib.util

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.norms import residual_norm, residual_norm_fp8, shifted_norm
from photonlite.kernels.reference import norms as reference_norms
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended

EPS = 1e-5
Case = tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None, float]


def case_of(
    rows: int, dim: int, delta_rows: int, dtype: torch.dtype, *, bias: bool = True, device: str = "cpu"
) -> Case:
    torch.manual_seed(0)

    def random(*size: int) -> Tensor:
        return (torch.randn(size) * 2 + 1).to(dtype).to(device)

    delta = random(delta_rows, dim) if delta_rows else None
    return random(rows, dim), delta, random(dim) if bias else None, random(dim), random(dim), EPS


def test_what_is_added_is_rounded_before_it_is_normalised() -> None:
    x, delta, delta_bias, weight, bias, eps = case = case_of(4, 33, 4, torch.bfloat16)
    assert delta is not None
    assert delta_bias is not None

    total, normal = residual_norm(*case)

    wanted = (x.double() + delta.double() + delta_bias.double()).to(torch.bfloat16)
    assert torch.equal(total, wanted)
    wide = wanted.double()
    spread = ((wide - wide.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True) + eps
    exact = (wide - wide.mean(1, keepdim=True)) / spread.sqrt() * weight.double() + bias.double()
    torch.testing.assert_close(normal, exact.to(torch.bfloat16))


def test_fewer_rows_are_added_again_and_again() -> None:
    x, delta, _, weight, bias, eps = case_of(6, 5, 3, torch.float64)
    assert delta is not None

    total, normal = residual_norm(x, delta, None, weight, bias, eps)

    torch.testing.assert_close(total, x + torch.cat((delta, delta)))
    torch.testing.assert_close(normal, functional.layer_norm(total, (5,), weight, bias, eps))


def test_with_nothing_to_add_the_stream_stays_what_it_is() -> None:
    case = case_of(3, 7, 0, torch.float32, bias=False)
    assert residual_norm(*case)[0] is case[0]
    assert residual_norm_fp8(*case)[0] is case[0]


def test_quantised_rows_are_the_normalised_ones_within_half_a_step() -> None:
    case = case_of(5, 64, 5, torch.float32)
    total, normal = residual_norm(*case)

    again, q, scale = residual_norm_fp8(*case)

    assert torch.equal(again, total)
    assert q.float().abs().amax(1).tolist() == [448.0] * 5
    torch.testing.assert_close(q.float() * scale, normal, rtol=2**-4, atol=float(scale.max()) * 2**-10)


def test_what_a_stream_lacks_is_added_without_rounding() -> None:
    x, _, _, weight, bias, eps = case_of(4, 33, 0, torch.bfloat16)
    shift = torch.randn(33)

    normal = shifted_norm(x, shift, weight, bias, eps)

    exact = functional.layer_norm(x.double() + shift.double(), (33,), weight.double(), bias.double(), eps)
    assert normal.dtype == torch.bfloat16
    assert (normal == exact.to(torch.bfloat16)).float().mean() > 0.99


def test_without_a_bias_it_is_an_rms_norm() -> None:
    x, delta, _, weight, _, eps = case_of(4, 33, 4, torch.float64)
    assert delta is not None

    total, normal = residual_norm(x, delta, None, weight, None, eps)
    quantised = residual_norm_fp8(x, delta, None, weight, None, eps)

    wanted = (x + delta) / ((x + delta).square().mean(1, keepdim=True) + eps) ** 0.5 * weight
    torch.testing.assert_close(total, x + delta)
    torch.testing.assert_close(normal, wanted)
    torch.testing.assert_close(shifted_norm(x, delta[0], weight, None, eps)[0], wanted[0])
    torch.testing.assert_close(quantised[1].double() * quantised[2], wanted, rtol=2**-4, atol=0.05)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_norms")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
SIZES = [
    (729, 1152, 729),
    (6561, 1152, 6561),
    (1458, 1152, 729),
    (3, 24, 3),
    (740, 2048, 740),
    (5, 8192, 0),
    (7, 131, 7),
]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_agrees_with_the_reference_on_the_device(size: tuple[int, int, int], centred: bool) -> None:
    case = case_of(*size, torch.bfloat16, bias=size[2] > 0, device="cuda")
    if not centred:
        case = (*case[:4], None, EPS)
    wanted, found = reference_norms.residual_norm(*case), residual_norm(*case)

    # Sums in another order may round to the neighbour in bfloat16, and the norm of a row follows.
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=2**-7, atol=2**-7)
        assert (one == other).float().mean() > 0.97


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("size", SIZES)
def test_the_quantising_kernel_agrees_with_the_reference_on_the_device(size: tuple[int, int, int]) -> None:
    case = case_of(*size, torch.bfloat16, bias=size[2] > 0, device="cuda")
    if not has_fp8(case[0].device):
        pytest.skip("this card does not multiply e4m3")
    total, q, scale = residual_norm_fp8(*case)
    other_total, other_q, other_scale = reference_norms.residual_norm_fp8(*case)

    torch.testing.assert_close(total, other_total, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(scale, other_scale, rtol=2**-6, atol=0.0)
    difference = (q.float() * scale - other_q.float() * other_scale).norm() / (other_q.float() * other_scale).norm()
    assert difference < 0.01


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("size", [(729, 1152), (6561, 1152), (740, 2048), (5, 24), (7, 131)])
def test_the_shifting_kernel_agrees_with_the_reference_on_the_device(size: tuple[int, int]) -> None:
    x, _, _, weight, bias, eps = case_of(*size, 0, torch.bfloat16, device="cuda")
    shift = torch.randn(size[1], device="cuda")

    found, wanted = (one(x, shift, weight, bias, eps) for one in (shifted_norm, reference_norms.shifted_norm))

    torch.testing.assert_close(found.float(), wanted.float(), rtol=2**-7, atol=2**-7)
    assert (found == wanted).float().mean() > 0.97

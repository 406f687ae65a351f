import pytest
import torch
from torch.nn import functional

from photonlite.errors import SettingsError
from photonlite.kernels.activations import swiglu
from photonlite.kernels.fp8 import (
    beside_gelu_fp8,
    fp8_linear,
    gelu_fp8,
    has_fp8,
    quantise_rows,
    quantise_weight,
    require_fp8_linears,
    swiglu_fp8,
)
from photonlite.kernels.reference import norms as reference_norms


def test_a_row_is_its_values_times_its_scale_within_half_a_step() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 40) * torch.tensor([1e-3, 1.0, 1e4, 3.0, 0.0, 7.0])[:, None]

    q, scale = quantise_rows(x)

    assert q.dtype == torch.float8_e4m3fn
    assert scale.shape == (6, 1)
    # Three bits of mantissa: half a step is a 16th at most; below 2**-6 steps are 2**-9.
    assert ((q.float() * scale - x).abs() <= torch.maximum(x.abs() / 16, scale * 2**-10) * 1.0001).all()
    assert q.float().abs().amax(1).tolist() == [448.0] * 4 + [0.0, 448.0]


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_stays_none_and_spoils_no_other(spoilt: float) -> None:
    x = torch.ones(3, 8)
    x[1, 2] = spoilt

    q, scale = quantise_rows(x)

    assert (q.float() * scale).isfinite().all(dim=1).tolist() == [True, False, True]


def test_gelu_is_taken_of_the_biased_row() -> None:
    torch.manual_seed(1)
    x, bias = torch.randn(5, 30), torch.randn(30)

    q, scale = gelu_fp8(x, bias)

    exact = functional.gelu(x.double() + bias.double(), approximate="tanh")
    assert ((q.double() * scale - exact).norm() / exact.norm()) < 0.04


def test_a_gate_is_applied_before_the_row_is_quantised() -> None:
    torch.manual_seed(3)
    x = torch.randn(3, 10) * 3

    q, scale = swiglu_fp8(x)

    torch.testing.assert_close(q.float() * scale, swiglu(x), rtol=2**-4, atol=float(scale.max()) * 2**-9)


def test_of_two_pieces_the_right_one_is_activated_and_both_share_a_scale() -> None:
    torch.manual_seed(5)
    left, right = torch.randn(5, 12), torch.randn(5, 30)

    q, scale = beside_gelu_fp8(left, right)

    exact = torch.cat((left, functional.gelu(right, approximate="tanh")), dim=1)
    assert torch.equal(scale, exact.abs().amax(1, keepdim=True) / 448)
    assert ((q.float() * scale - exact).norm() / exact.norm()) < 0.04


def test_a_quantised_product_is_near_the_exact_one() -> None:
    torch.manual_seed(2)
    x, weight, bias = torch.randn(32, 512), torch.randn(48, 512), torch.randn(48)

    out = fp8_linear(*quantise_rows(x), quantise_weight(weight), bias, torch.float32)

    exact = functional.linear(x, weight, bias)
    assert 0.01 < ((out - exact).norm() / exact.norm()) < 0.05  # 2.6 % of noise on each side


def test_a_card_that_cannot_multiply_e4m3_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if device.index == 90 else (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")

    with pytest.raises(SettingsError, match=r"A Card has compute capability 8\.0.* 8\.9 or later"):
        require_fp8_linears(torch.device("cuda", 90), torch.bfloat16)
    with pytest.raises(SettingsError, match=r"weights in torch.float16.*torch.bfloat16 only"):
        require_fp8_linears(torch.device("cuda", 91), torch.float16)
    require_fp8_linears(torch.device("cuda", 91), torch.bfloat16)


def test_a_processor_computes_the_same_without_such_products() -> None:
    require_fp8_linears(torch.device("cpu"), torch.float32)
    assert not has_fp8(torch.device("cpu"))


fp8_card = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_fp8(torch.device("cuda"))), reason="needs a card that multiplies e4m3"
)


@pytest.mark.gpu
@fp8_card
@pytest.mark.parametrize("shape", [(729, 3456, 1152), (1458, 1152, 4304), (740, 2048, 8192), (17, 48, 32)])
@pytest.mark.parametrize("biased", [True, False])
def test_products_agree_with_the_reference_on_the_device(shape: tuple[int, int, int], biased: bool) -> None:
    torch.manual_seed(3)
    rows, columns, depth = shape
    x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(columns, device="cuda", dtype=torch.bfloat16) if biased else None
    weight = quantise_weight(torch.randn(columns, depth, device="cuda", dtype=torch.bfloat16) * depth**-0.5)
    q, scale = gelu_fp8(x, None)

    found = fp8_linear(q, scale, weight, bias, torch.bfloat16).float()

    wanted = reference_norms.fp8_linear(q, scale, weight.values, weight.scale, bias, torch.float32)
    assert ((found - wanted).norm() / wanted.norm()) < 0.01


@pytest.mark.gpu
@fp8_card
def test_a_matrix_that_a_card_cannot_multiply_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"\[32, 24\].*multiples of 16"):
        quantise_weight(torch.zeros(32, 24, device="cuda"))


@pytest.mark.gpu
@fp8_card
@pytest.mark.parametrize("width", [24, 1152, 4304, 8192, 10240])
def test_activations_agree_with_the_reference_on_the_device(width: int) -> None:
    torch.manual_seed(4)
    x = (torch.randn(9, width + 8, device="cuda", dtype=torch.bfloat16) * 3)[:, :width]
    bias = torch.randn(width, device="cuda", dtype=torch.bfloat16)

    gates = x[:, : width // 2 * 2]
    pairs = (
        (gelu_fp8(x, bias), reference_norms.gelu_fp8(x, bias)),
        (quantise_rows(x), reference_norms.quantise_rows(x)),
        (swiglu_fp8(gates), reference_norms.swiglu_fp8(gates)),
    )

    for (q, scale), (other_q, other_scale) in pairs:
        torch.testing.assert_close(scale, other_scale, rtol=1e-5, atol=0.0)
        torch.testing.assert_close(q.float() * scale, other_q.float() * other_scale, rtol=0.13, atol=1e-4)
        assert (q.view(torch.uint8) == other_q.view(torch.uint8)).float().mean() > 0.99


@pytest.mark.gpu
@fp8_card
@pytest.mark.parametrize("sizes", [(2048, 8192), (24, 33), (1, 5)])
def test_pieces_agree_with_the_reference_on_the_device(sizes: tuple[int, int]) -> None:
    torch.manual_seed(6)
    left = torch.randn(9, sizes[0], device="cuda", dtype=torch.bfloat16)
    right = torch.randn(9, sizes[1] + 16, device="cuda", dtype=torch.bfloat16)[:, 16:]

    (q, scale), (other_q, other_scale) = beside_gelu_fp8(left, right), reference_norms.beside_gelu_fp8(left, right)

    torch.testing.assert_close(scale, other_scale, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(q.float() * scale, other_q.float() * other_scale, rtol=0.13, atol=1e-4)


@pytest.mark.gpu
@fp8_card
def test_on_the_device_too_a_row_that_is_no_number_spoils_no_other_and_no_value_overflows() -> None:
    x = torch.rand(4, 4304, device="cuda").bfloat16()
    x[1, 4300], x[2, 7], x[3] = torch.nan, torch.inf, 3e38

    q, scale = quantise_rows(x)

    assert (q.float() * scale).isfinite().all(dim=1).tolist() == [True, False, False, True]

"""Products with quantised weights: in Triton's interpreter, and on a card against the same matrices in float64."""

import importlib.util

import pytest
import torch
from torch import Tensor

from photonlite.config import Precision
from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.quantised import dense
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, join_columns, quantise
from photonlite.kernels.serial_block import add_linear, empty_scales, norm_linear, scale_stream
from photonlite.kernels.small_batch_gemm import group_of, linear_in, linear_out, small_batch_gemm, supported
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended

CUDA, BF16 = torch.device("cuda"), torch.bfloat16
DIM, QKV, INNER = 2048, 6144, 8192


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long(first=True)
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_quantised")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


def test_on_the_cpu_products_are_those_of_the_matrix() -> None:
    x, weight = torch.randn(3, 128), quantise(torch.randn(40, 128), "int4")
    assert not supported(x, weight)
    assert torch.equal(small_batch_gemm(x, weight, None), x @ dequantise(weight, torch.float32).t())


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


def random(*size: int) -> Tensor:
    return (torch.randn(size, device=CUDA) / 16).to(BF16)


def made(rows: int, columns: int, precision: Precision) -> tuple[QuantisedWeight, Tensor]:
    """Return a weight, and its matrix in float64."""
    if precision == "fp8" and not has_fp8(CUDA):
        pytest.skip("needs FP8")
    weight = quantise(random(rows, columns), precision)
    return weight, dequantise(weight, torch.float64)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("rows", [1, 2, 8, 33, 64])
def test_products_on_a_card_are_as_exact_as_bfloat16(precision: Precision, rows: int) -> None:
    torch.manual_seed(rows)
    x, bias, norm = random(rows, DIM) * 16, random(QKV), (random(DIM) + 1, random(DIM), 1e-5)
    weight, matrix = made(QKV, DIM, precision)
    assert supported(x, weight)
    assert error(small_batch_gemm(x, weight, bias), x.double() @ matrix.t() + bias) < 4e-3
    assert torch.equal(dense(weight, BF16), dequantise(weight, BF16))

    normal = torch.nn.functional.layer_norm(x.double(), (DIM,), norm[0].double(), norm[1].double(), norm[2])
    raw, activated = (x.new_empty(rows, size) for size in (QKV - 1024, 1024))
    linear_in(x, None, weight, bias, norm, raw, activated)
    product = normal.to(BF16).double() @ matrix.t() + bias
    assert error(raw, product[:, :-1024]) < 8e-3
    assert error(activated, torch.nn.functional.gelu(product[:, -1024:], approximate="tanh")) < 8e-3

    parts = [made(DIM, columns, precision) for columns in (DIM, INNER)]
    w_out, out_matrix = join_columns([part for part, _ in parts]), torch.cat([one for _, one in parts], dim=1)
    inside, stream = random(rows, DIM + INNER) * 16, x.clone()
    linear_out(inside, w_out, random(DIM) * 0, stream, None)
    assert error(stream, x.double() + inside.double() @ out_matrix.t()) < 4e-3


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_serial_products_on_a_card(precision: Precision, rows: int) -> None:
    torch.manual_seed(rows)
    x, gain = random(rows, DIM) * 16, random(DIM) + 1
    gate_up, up_matrix = made(2 * INNER, DIM, precision)
    down, down_matrix = made(DIM, INNER, precision)
    scales, new = (empty_scales(rows, DIM, INNER, 1e-6, x, group=group_of(down)) for _ in range(2))
    scale_stream(x, gain, scales)
    inside, stream = x.new_empty(rows, INNER), x.clone()
    norm_linear(scales, gate_up, None, inside, gated=True)
    add_linear(inside, down, stream, (gain, new))

    normal = x.double() / (x.double().square().mean(dim=1, keepdim=True) + 1e-6).sqrt() * gain
    gate, value = (normal @ up_matrix.t()).chunk(2, dim=1)
    assert error(inside, torch.nn.functional.silu(gate) * value) < 1e-2
    assert error(stream, x.double() + inside.double() @ down_matrix.t()) < 4e-3
    assert error(new.squares.sum(dim=0), stream.double().square().sum(dim=1)) < 1e-3

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from photonlite.config import Precision
from photonlite.kernels.reference.quantised import dequantise, quantise
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models import fused_layers
from photonlite.models.fused_layers import Fp8Linear, Norm, WideLinear, join_layers

DIM, LAYERS = 12, 4


def layers_of(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], list[Norm]]:
    torch.manual_seed(0)
    weights = [(torch.randn(DIM, 7) / 3).to(dtype) for _ in range(LAYERS)]
    biases = [torch.randn(DIM).to(dtype) for _ in range(LAYERS)]
    norms = [Norm(torch.randn(DIM).to(dtype), torch.randn(DIM).to(dtype), 1e-5, fp8=False) for _ in range(LAYERS)]
    return weights, biases, norms


@pytest.mark.parametrize("joined", [0, 1, LAYERS])
def test_stream_plus_lacking_biases_is_the_sum_of_all_layers(
    joined: int,
) -> None:
    weights, biases, norms = layers_of(torch.float64)
    linears = [WideLinear(weight, None) for weight in weights[:joined]]
    start = x = torch.randn(5, DIM, dtype=torch.float64)
    total, kept = start.clone(), start.clone()

    joins, lacking = join_layers(linears, biases, norms[:joined])

    assert len(joins) == joined
    for join, lack, weight, bias, norm in zip(joins, lacking, weights, biases, norms, strict=False):
        rows = torch.randn(5, 7, dtype=torch.float64)
        total = total + rows @ weight.T + bias
        x, (normal,) = join(x, (rows,))
        torch.testing.assert_close(normal, functional.layer_norm(total, (DIM,), norm.weight, norm.bias, norm.eps))
        torch.testing.assert_close(x + lack if join.in_place else x, total)
    assert torch.equal(start, kept)  # the first join writes over nothing
    if joined < LAYERS:
        torch.testing.assert_close(x + lacking[joined], total + biases[joined])


def test_biases_are_summed_in_full_precision() -> None:
    weights, biases, norms = layers_of(torch.bfloat16)

    _, lacking = join_layers([WideLinear(weight, None) for weight in weights], biases, norms)

    assert lacking[-1].dtype == torch.float32
    torch.testing.assert_close(lacking[-1].double(), sum(bias.double() for bias in biases[1:]), rtol=1e-6, atol=1e-6)


def test_products_of_8_bits_leave_adding_to_the_norm() -> None:
    weights, biases, norms = layers_of(torch.bfloat16)

    joins, lacking = join_layers([Fp8Linear(weight, None) for weight in weights], biases, norms)

    assert not any(join.in_place for join in joins)
    assert all(lack is bias for lack, bias in zip(lacking, biases, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("rows", [1, 16, 64, 65])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_few_rows_are_multiplied_with_the_quantised_weight_itself(
    precision: Precision, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(rows)
    x, bias = (torch.randn(*size, device="cuda").bfloat16() for size in ((rows, 1024), (4096,)))
    weight = quantise((torch.randn(4096, 1024, device="cuda") / 32).bfloat16(), precision)
    full, layer = dequantise(weight, torch.float64), WideLinear(weight, bias)
    if rows <= MAX_ROWS:
        monkeypatch.setattr(fused_layers, "dense", Mock(side_effect=AssertionError("a matrix was turned back")))
    product = x.double() @ full.T
    stream = torch.randn(rows, 4096, device="cuda").bfloat16()
    before, (gate, value) = stream.double(), (product + bias).chunk(2, dim=1)

    layer.add_to(stream, (x,))

    for found, truth in (
        (layer((x,)), product + bias),
        (layer.gelu((x,))[0], functional.gelu(product + bias, approximate="tanh")),
        (layer.swiglu((x,))[0], functional.silu(gate) * value),
        (stream, before + product),
    ):
        assert float((found.double() - truth).norm() / truth.norm()) < 1e-2

import importlib.util

import pytest
import torch
from torch import Tensor

from photonlite.kernels.reference import temperature as reference
from photonlite.kernels.temperature import temperatures
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended


def case_of(rows: int, heads: int, columns: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    qkv, weight = torch.randn(rows, columns) * 2, torch.randn(2 * heads, columns) / columns**0.5
    positions = torch.randint(0, 90, (rows,)).int()
    return qkv.to(dtype), weight.to(dtype), torch.randn(heads).to(dtype), torch.arange(1, 91).log(), positions


@pytest.mark.parametrize("tanh", [False, True])
def test_factors_are_learned_from_projections_and_positions(tanh: bool) -> None:
    qkv, weight, alpha, logs, positions = case_of(4, 3, 24)

    found = temperatures(qkv, weight, alpha, logs, positions, tanh_gelu=tanh)

    cubic = torch.tanh((2 / torch.pi) ** 0.5 * (qkv + 0.044715 * qkv**3))
    features = qkv / 2 * (1 + (cubic if tanh else torch.erf(qkv / 2**0.5)))
    assert found.dtype == torch.float64
    for row, position in enumerate(positions.tolist()):
        for which in range(6):
            place = 0.5 + torch.sigmoid(alpha[which % 3] * torch.log(torch.tensor(position + 1.0)))
            wanted = torch.tanh(weight[which] @ features[row]) + place
            assert float(found[row, which]) == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_temperature")
def test_the_kernel_of_temperatures_agrees_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 64, 65, 740])
def test_factors_on_a_card_are_those_of_the_reference(rows: int, tanh: bool) -> None:
    case = tuple(one.cuda() for one in case_of(rows, 32, 6144, torch.bfloat16))

    found = temperatures(*case, tanh_gelu=tanh)

    wide = (one.double() if one.dtype == torch.bfloat16 else one for one in case)
    wanted = reference.temperatures(*wide, tanh_gelu=tanh)
    assert float((found - wanted).abs().max()) < 0.03
    assert torch.equal(found, temperatures(*case, tanh_gelu=tanh))

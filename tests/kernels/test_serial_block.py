import importlib.util

import pytest
import torch
from torch import Tensor

from photonlite.kernels.serial_block import add_linear, empty_scales, norm_linear, scale_stream
from photonlite.kernels.small_batch_gemm import MAX_ROWS, Scales
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.steps import SerialCase, serial_case


def normalised(case: SerialCase, x: Tensor) -> Tensor:
    return x / (x.square().mean(dim=1, keepdim=True) + case.eps) ** 0.5 * case.gain


def swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=1)
    return gate / (1 + torch.exp(-gate)) * value


def scales_of(case: SerialCase) -> Scales:
    scales = empty_scales(*case.x.shape, case.w_out.shape[1], case.eps, case.x)
    scale_stream(case.x, case.gain, scales)
    return scales


@pytest.mark.parametrize("sizes", [(3, 20, 12, 15), (1, 300, 7, 5), (64, 130, 9, 4)])
def test_a_norm_a_product_and_a_gate_in_front_of_a_residual_addition(sizes: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    case = serial_case(*sizes)
    scales, following = scales_of(case), scales_of(case)
    qkv, inside, x = case.x.new_empty(len(case.x), sizes[2]), torch.empty_like(case.inside), case.x.clone()

    norm_linear(scales, case.w_in, case.b_in, qkv)
    norm_linear(scales, case.w_gated, None, inside, gated=True)
    add_linear(case.inside, case.w_out, x, (case.gain, following))

    normal = normalised(case, case.x)
    torch.testing.assert_close(qkv, normal @ case.w_in.T + case.b_in, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(inside, swiglu(normal @ case.w_gated.T), rtol=1e-11, atol=1e-11)
    total = case.x + case.inside @ case.w_out.T
    torch.testing.assert_close(x, total, rtol=1e-11, atol=1e-11)
    norm_linear(following, case.w_in, None, qkv)
    torch.testing.assert_close(qkv, normalised(case, total) @ case.w_in.T, rtol=1e-11, atol=1e-11)


def test_without_a_norm_behind_it_only_the_stream_is_written() -> None:
    case = serial_case(2, 20, 12, 15)
    x = case.x.clone()
    add_linear(case.inside, case.w_out, x, None)
    torch.testing.assert_close(x, case.x + case.inside @ case.w_out.T)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_serial")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
# rows, width of the residual stream, columns of queries, keys and values, inside of the MLP
SIZES = [
    *((rows, 2048, 4096, 6144) for rows in (1, 8, 32, MAX_ROWS)),
    *((rows, 4096, 6144, 12288) for rows in (1, 8, 32)),
    *((rows, 3584, 4608, 18944) for rows in (1, 16)),
    *((rows, 224, 672, 896) for rows in (1, 5, 33)),
    (1, 40, 24, 42),
    (17, 40, 24, 42),
    (MAX_ROWS + 1, 224, 672, 896),
]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def step(case: SerialCase) -> tuple[Tensor, ...]:
    """All products behind one another, as a block runs them."""
    rows, dim = case.x.shape
    scales = scales_of(case)
    qkv, inside = case.x.new_empty(rows, len(case.w_in)), torch.empty_like(case.inside)
    norm_linear(scales, case.w_in, case.b_in, qkv)
    norm_linear(scales, case.w_gated, None, inside, gated=True)
    x = case.x.clone()
    following = empty_scales(rows, dim, case.w_out.shape[1], case.eps, x)
    add_linear(inside, case.w_out, x, (case.gain, following))
    return qkv, inside, x, following.rows, following.squares.sum(dim=0)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("sizes", SIZES)
def test_products_on_a_card_are_rounded_as_often_as_their_inputs(sizes: tuple[int, int, int, int]) -> None:
    torch.manual_seed(1)
    case = serial_case(*sizes).to(torch.bfloat16, "cuda")
    wide = case.to(torch.float64, "cuda")

    qkv, inside, x, rows, squares = step(case)

    normal = normalised(wide, wide.x)
    once = torch.finfo(torch.bfloat16).eps / 2
    slack = 1.5 if sizes[0] <= MAX_ROWS else 3.0  # rows and results are rounded; the reference rounds between as well
    assert error(qkv, normal @ wide.w_in.T + wide.b_in) < slack * once
    assert error(inside, swiglu(normal @ wide.w_gated.T)) < 2 * slack * once  # a gate multiplies two such errors
    assert error(x, wide.x + inside.double() @ wide.w_out.T) < slack * once
    assert error(rows, x.double() * wide.gain) < once
    torch.testing.assert_close(squares, x.float().square().sum(dim=1), rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("sizes", SIZES[:-1])
def test_a_replayed_graph_of_products_gives_the_same_bits(sizes: tuple[int, int, int, int]) -> None:
    torch.manual_seed(2)
    case = serial_case(*sizes).to(torch.bfloat16, "cuda")
    wanted = step(case)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(case)

    for _ in range(5):
        graph.replay()
        for one, other in zip(found[:4], wanted[:4], strict=True):
            assert torch.equal(one, other)

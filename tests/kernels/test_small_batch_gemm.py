import contextlib
import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.kernels import small_batch_gemm as gemm
from photonlite.kernels import triton_utils
from photonlite.kernels.reference import small_batch_gemm as reference
from photonlite.kernels.small_batch_gemm import (
    MAX_ROWS,
    Handshake,
    linear_in,
    linear_out,
    run_product,
    small_batch_gemm,
    tile_statistics,
)
from photonlite.kernels.tilings import Tiling, programs_of, stats_width
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.steps import EPS, BlockCase, block_case

CPU = torch.device("cpu")


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(dim=1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=1, keepdim=True)
    return (x - mean) / (variance + EPS) ** 0.5 * weight + bias


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("activated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_is_a_norm_a_product_and_gelu(normed: bool, activated: bool, biased: bool) -> None:
    torch.manual_seed(0)
    case = block_case(3, 20, 12, 15)
    weight, bias, eps = case.norm
    wanted = (normalised(case.x, weight, bias) if normed else case.x) @ case.w_in.T
    wanted = wanted + case.b_in if biased else wanted
    wanted = gelu(wanted) if activated else wanted

    found = small_batch_gemm(
        case.x, case.w_in, case.b_in if biased else None, norm=(weight, bias, eps) if normed else None, gelu=activated
    )

    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_both_products_of_a_block_are_what_they_say() -> None:
    torch.manual_seed(1)
    case = block_case(3, 20, 12, 15)
    qkv, cat = torch.empty(3, 12, dtype=torch.float64), torch.zeros(3, 27, dtype=torch.float64)
    x, stats = case.x.clone(), tile_statistics(case.x, 8)

    linear_in(x, None, case.w_in, case.b_in, case.norm, qkv, cat[:, 12:])
    linear_out(case.inside, case.w_out, case.b_out, x, stats)

    raw = normalised(case.x, *case.norm[:2]) @ case.w_in.T + case.b_in
    torch.testing.assert_close(qkv, raw[:, :12], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cat[:, 12:], gelu(raw[:, 12:]), rtol=1e-12, atol=1e-12)
    assert not cat[:, :12].any()
    total = case.x + case.inside @ case.w_out.T + case.b_out
    torch.testing.assert_close(x, total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stats, tile_statistics(total, 8))


@given(width=st.sampled_from([1, 4, 8, 64]), columns=st.integers(1, 70))
@settings(max_examples=40)
def test_statistics_of_tiles_merge_into_those_of_rows(width: int, columns: int) -> None:
    x = torch.randn(3, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(columns)) + 100

    means, squares = tile_statistics(x, width)

    counts = torch.tensor([[len(part)] for part in torch.arange(columns).split(width)])
    mean = (means * counts).sum(dim=0) / columns
    torch.testing.assert_close(mean, x.mean(dim=1))
    variance = (squares + counts * (means - mean) ** 2).sum(dim=0) / columns
    torch.testing.assert_close(variance, x.var(dim=1, correction=0))


@given(dim=st.integers(1, 300), inside=st.integers(1, 5000))
@settings(max_examples=100)
def test_the_plain_product_keeps_the_statistics_that_the_kernel_would(dim: int, inside: int) -> None:
    width = stats_width(dim, inside)
    stats = torch.empty(2, -(-dim // width), 1)
    x = torch.randn(1, dim, generator=torch.Generator().manual_seed(dim))
    wanted = tile_statistics(x, width)

    linear_out(torch.zeros(1, 1), torch.zeros(dim, 1), torch.zeros(dim), x, stats)

    torch.testing.assert_close(stats, wanted)


def test_statistics_of_other_tiles_and_several_rows_are_refused_before_anything_runs() -> None:
    x, weight, stats = torch.zeros(1, 8), torch.zeros(100, 8), torch.zeros(2, 3, 1)
    tiling = Tiling(64, 8, stages=0)
    with pytest.raises(ValueError, match="statistics of 2 tiles, one a program; given are 3 tiles"):
        run_product(x, weight, None, raw=x, activated=x, split=100, residual=True, new_stats=stats, tiling=tiling)
    with pytest.raises(ValueError, match="a single row, not 2"):
        run_product(torch.zeros(2, 8), weight, None, raw=x, activated=x, split=100, tiling=tiling)


def test_engines_side_by_side_share_no_counters() -> None:
    mine: gemm.Counters = {}
    common = triton_utils.arrival_counters(CPU, 5)
    with contextlib.suppress(KeyError), triton_utils.counting_in(mine):
        own = triton_utils.arrival_counters(CPU, 5)
        assert triton_utils.arrival_counters(CPU, 9) is own
        raise KeyError
    assert own is not common
    assert list(mine.values()) == [own]
    assert triton_utils.arrival_counters(CPU, 5) is common


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_decode")
def test_the_kernels_of_a_step_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
# rows, width of the residual stream, columns of queries, keys and values, inside of the MLP
SIZES = [
    (1, 2048, 6144, 8192),
    (8, 2048, 6144, 8192),
    (64, 2048, 6144, 8192),
    (1, 224, 672, 896),
    (5, 224, 672, 896),
    (33, 224, 672, 896),
    (1, 40, 24, 42),
    (17, 40, 24, 42),
    (MAX_ROWS + 1, 224, 672, 896),
]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def products(case: BlockCase, shake: bool) -> tuple[Tensor, ...]:
    """Run both products behind one another; the late columns of the second are there before."""
    rows, dim = case.x.shape
    width = stats_width(dim, len(case.w_in))
    x, raw, cat = case.x.clone(), case.x.new_empty(rows, case.attended), case.inside.clone()
    stats = tile_statistics(x, width)
    before, given = stats.clone(), stats if rows == 1 else None
    handshake = None
    if shake:
        ready = torch.zeros(2, dtype=torch.int32, device=x.device)
        count = programs_of(rows, *case.w_in.shape)
        handshake = Handshake(ready[:1], ready[1:], count, case.attended)
    linear_in(x, given, case.w_in, case.b_in, case.norm, raw, cat[:, case.attended :], handshake)
    linear_out(cat, case.w_out, case.b_out, x, given, handshake)
    return raw, cat, x, before, stats


def exact_products(case: BlockCase, dtype: torch.dtype, cat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same in float64 with the norm's output rounded, and with what the second product was really given."""
    wide = case.to(torch.float64, str(case.x.device))
    normal = normalised(wide.x, *wide.norm[:2]).to(dtype).double()
    raw = normal @ wide.w_in.T + wide.b_in
    split = case.attended
    return raw[:, :split], gelu(raw[:, split:]), wide.x + cat.double() @ wide.w_out.T + wide.b_out


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [(sizes, torch.bfloat16) for sizes in SIZES] + [(sizes, torch.float16) for sizes in SIZES[3:6]],
)
def test_products_on_a_card_are_rounded_once(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    case = block_case(*sizes).to(dtype, "cuda")
    shake = sizes[0] <= MAX_ROWS

    raw, cat, x, before, stats = products(case, shake)

    wanted = exact_products(case, dtype, cat)
    once = torch.finfo(dtype).eps / 2  # the relative error of rounding is at most that, and on average half of it
    slack = 1.0 if sizes[0] <= MAX_ROWS else 2.0  # the reference product rounds before it adds
    assert error(raw, wanted[0]) < slack * once
    assert error(cat[:, case.attended :], wanted[1]) < slack * once
    assert error(x, wanted[2]) < slack * once
    width = stats_width(case.x.shape[1], len(case.w_in))
    torch.testing.assert_close(before, reference.tile_statistics(case.x, width), rtol=1e-4, atol=1e-3)
    if sizes[0] == 1:
        torch.testing.assert_close(stats, reference.tile_statistics(x, width), rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("sizes", SIZES[:-1])
def test_a_replayed_graph_of_products_gives_the_same_bits(sizes: tuple[int, int, int, int]) -> None:
    torch.manual_seed(3)
    case = block_case(*sizes).to(torch.bfloat16, "cuda")
    wanted = products(case, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = products(case, True)

    for _ in range(5):
        graph.replay()
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [1, 7, 64, 65])
@pytest.mark.parametrize("outs", [5, 1024, 51200])
def test_a_head_on_a_card_is_that_of_the_reference(rows: int, outs: int) -> None:
    torch.manual_seed(4)
    x = (torch.randn(rows, 3, 2048, device="cuda") * 3 + 1).bfloat16()[:, 1]  # rows lie apart
    weight, bias = torch.randn(outs, 2048, device="cuda").bfloat16() / 45, torch.randn(outs, device="cuda").bfloat16()
    gamma, beta = torch.randn(2, 2048, device="cuda").bfloat16()
    normal = normalised(x.double(), gamma.double(), beta.double()).bfloat16().double()

    found = small_batch_gemm(x, weight, bias, norm=(gamma, beta, EPS), gelu=True)

    bound = 2**-8 if rows <= MAX_ROWS else 2**-7  # the reference operations round before GELU as well
    assert error(found, gelu(normal @ weight.double().T + bias.double())) < bound

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.kernels import experts
from photonlite.kernels.experts import GroupTiling, add_and_norm, experts_in, experts_out, most_tiles, route
from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.reference import experts as reference
from photonlite.kernels.reference.experts import ExpertWeight, quantise_experts
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_route_holds_the_largest_logits_of_each_row_and_their_softmax() -> None:
    logits = random(7, 12)

    routes = route(logits, 3)

    pairs = routes.order.tolist()
    assert sorted(pairs) == list(range(21))
    for row in range(7):
        best = sorted(range(12), key=lambda index: -float(logits[row, index]))[:3]
        for rank, expert in enumerate(best):
            place = pairs.index(3 * row + rank)
            assert int(routes.starts[expert]) <= place < int(routes.starts[expert + 1])
        torch.testing.assert_close(routes.shares[row], logits[row, best].softmax(0))


def test_of_equal_logits_the_first_are_chosen() -> None:
    routes = route(torch.zeros(2, 9), 4)

    assert routes.starts.tolist() == [0, 2, 4, 6, 8, 8, 8, 8, 8, 8]
    assert routes.shares.tolist() == [[0.25] * 4] * 2


@pytest.mark.parametrize(("tokens", "count", "ranks"), [(1, 24, 4), (1, 4, 4), (9, 64, 2), (5, 6, 1)])
@pytest.mark.parametrize("quantised", [False, True])
def test_products_are_those_of_each_rows_experts(tokens: int, count: int, ranks: int, quantised: bool) -> None:
    x, into, out_of = random(tokens, 10), random(count, 14, 10, seed=1), random(count, 5, 7, seed=2)
    logits = random(tokens, count, seed=3)
    weights = [quantise_experts(one) if quantised else ExpertWeight(one) for one in (into, out_of)]
    if quantised:
        into, out_of = (one.values.double() * one.scale.double()[..., None] for one in weights)
    routes = route(logits, ranks)

    inside = experts_in(x, routes, weights[0])
    found = experts_out(inside, routes, weights[1])

    for row in range(tokens):
        best = sorted(range(count), key=lambda index: -float(logits[row, index]))[:ranks]
        for rank, expert in enumerate(best):
            h, g = (into[expert] @ x[row]).chunk(2)
            activated = h * 0.5 * (1 + torch.erf(h / 2**0.5)) * (g + 1)
            place = routes.order.tolist().index(row * ranks + rank)
            torch.testing.assert_close(inside[place], activated, rtol=1e-6, atol=1e-9)
            wanted = logits[row, best].softmax(0)[rank] * (out_of[expert] @ activated)
            torch.testing.assert_close(found[row, rank], wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="PyTorch has no product of segments")
@pytest.mark.parametrize("quantised", [False, True])
def test_products_of_segments_are_the_same(monkeypatch: pytest.MonkeyPatch, quantised: bool) -> None:
    x, weight = random(30, 16).float(), random(8, 24, 16, seed=1).float()
    stored = quantise_experts(weight) if quantised else ExpertWeight(weight)
    routes = route(random(30, 8, seed=2).float(), 2)
    wanted = experts_in(x, routes, stored)
    used: list[object] = []
    monkeypatch.setattr(reference, "has_segments", lambda *given: not used.append(given))

    torch.testing.assert_close(experts_in(x, routes, stored), wanted)

    assert used


def test_quantised_matrices_are_within_half_a_step_of_8_bits() -> None:
    weight = random(3, 5, 40).float() * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    weight[1, 2] = 0

    found = quantise_experts(weight)

    assert found.scale is not None
    wide = found.values.float() * found.scale[..., None]
    assert found.values.float().abs().amax(dim=2)[weight.abs().amax(dim=2) > 0].eq(448).all()
    assert ((wide - weight).abs() <= weight.abs() / 16 + found.scale[..., None] * 2**-10).all()


def test_what_is_added_is_rounded_once_and_then_normalised() -> None:
    x, parts, shift = (random(*size).bfloat16() for size in ((4, 20), (4, 3, 20), (20,)))
    weight, bias = random(2, 20, seed=5).bfloat16()
    wanted = (x.double() + parts.double().sum(1) + shift.double()).bfloat16()

    normal = add_and_norm(x, parts, shift, (weight, bias, 1e-5))

    assert torch.equal(x, wanted)
    exact = torch.nn.functional.layer_norm(wanted.double(), (20,), weight.double(), bias.double())
    torch.testing.assert_close(normal.double(), exact, rtol=2**-7, atol=2**-7)
    assert add_and_norm(x, None, None, None) is x
    assert torch.equal(x, wanted)


@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=20),
    ranks=st.integers(1, 4),
    rows=st.sampled_from([1, 4, 16, 128]),
)
@settings(max_examples=200)
def test_there_are_never_more_tiles_than_programs(counts: list[int], ranks: int, rows: int) -> None:
    # A row goes to an expert once at most, and to `ranks` of them.
    tokens = max(*counts, -(-sum(counts) // ranks), 1)
    tiles = sum(-(-count // rows) for count in counts)
    assert tiles <= most_tiles(tokens, len(counts), ranks, rows)


@pytest.mark.parametrize("shared", [101_376, 166_912, 232_448])  # of capability 8.6 and 8.9, 8.0, 9.0
def test_a_program_fits_the_memory_of_every_card(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "shared_memory", lambda x: shared)
    x = torch.zeros(1, 8, dtype=torch.bfloat16)
    kinds = {fp8: ExpertWeight(x.to(torch.float8_e4m3fn) if fp8 else x) for fp8 in (False, True)}
    for tokens in (1, 2, 64, 100, 300, 740, 4096):
        for fp8 in (False, True):
            for matrices, tiling_of in ((2, experts.tiling_in), (1, experts.tiling_out)):
                wanted = tiling_of(tokens, 64, 8, fp8=fp8)
                found = experts._fitted(wanted, x, kinds[fp8], matrices)
                assert (found.rows, found.outs) == (wanted.rows, wanted.outs), "others count programs"
                column = matrices * found.outs * (1 if fp8 else 2) + 2 * found.rows
                assert found.rows == 1 or found.stages * found.step * column < shared
    with pytest.raises(ValueError, match="too few"):
        experts._fitted(GroupTiling(128, 4096, 64, 8, 2), x, kinds[False], 2)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_experts")
def test_the_kernels_of_experts_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
# rows, experts, experts of a row, width, inside
SIZES = [
    (1, 64, 8, 2048, 1024),
    (2, 64, 8, 2048, 1024),
    (8, 64, 8, 2048, 1024),
    (64, 64, 8, 2048, 1024),
    (100, 64, 8, 2048, 1024),
    (740, 64, 8, 2048, 1024),
    (5, 6, 6, 72, 40),
    (70, 12, 2, 40, 24),
]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("quantised", [False, True], ids=["wide", "fp8"])
@pytest.mark.parametrize("sizes", SIZES)
def test_grouped_products_on_a_card_are_rounded_once(sizes: tuple[int, int, int, int, int], quantised: bool) -> None:
    if quantised and not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    tokens, count, ranks, dim, inner = sizes
    torch.manual_seed(0)
    x, logits = (torch.randn(tokens, size, device="cuda").bfloat16() for size in (dim, count))
    matrices = [torch.randn(count, *size, device="cuda").bfloat16() for size in ((2 * inner, dim), (dim, inner))]
    weights = [
        quantise_experts(one / one.shape[2] ** 0.5) if quantised else ExpertWeight(one / one.shape[2] ** 0.5)
        for one in matrices
    ]
    exact = [
        ExpertWeight(one.values.float() if one.scale is None else one.values.float() * one.scale[..., None])
        for one in weights
    ]

    routes = route(logits, ranks)
    inside = experts_in(x, routes, weights[0])
    found = experts_out(inside, routes, weights[1])

    wanted = reference.route(logits, ranks)
    assert torch.equal(routes.starts, wanted.starts)
    assert torch.equal(routes.order, wanted.order)
    torch.testing.assert_close(routes.shares, wanted.shares)
    once = torch.finfo(torch.bfloat16).eps / 2
    assert error(inside, reference.experts_in(x.float(), routes, exact[0])) < once
    assert error(found, reference.experts_out(inside.float(), routes, exact[1])) < once


@pytest.mark.gpu
@gpu
def test_a_replayed_graph_routes_anew() -> None:
    torch.manual_seed(0)
    into, out_of = (ExpertWeight(torch.randn(64, 256, size, device="cuda").bfloat16() / 16) for size in (256, 128))
    x, logits = torch.randn(8, 256, device="cuda").bfloat16(), torch.randn(8, 64, device="cuda").bfloat16()

    def work() -> Tensor:
        routes = route(logits, 8)
        return experts_out(experts_in(x, routes, into), routes, out_of)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    for _ in range(5):
        logits.normal_()
        graph.replay()
        assert torch.equal(found, work())

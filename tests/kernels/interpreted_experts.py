"""Runs the kernels of a mixture of experts on the CPU by Triton's interpreter; see `interpreter.py`."""

import torch
from torch import Tensor

from photonlite.kernels import experts
from photonlite.kernels.experts import GroupTiling
from photonlite.kernels.reference import experts as reference
from photonlite.kernels.reference.experts import ExpertWeight, Routes

# rows, experts, experts of a row, width, inside
SIZES = [(1, 8, 2, 24, 10), (3, 20, 8, 40, 12), (17, 6, 6, 32, 16), (64, 8, 3, 16, 8), (70, 7, 2, 24, 9)]
SIZES += [(150, 5, 1, 16, 33)]
MANY = [GroupTiling(16, 16, 32, 1, 1), GroupTiling(32, 8, 16, 1, 1), GroupTiling(4, 64, 64, 1, 1)]
SINGLE = GroupTiling(1, 4, 32, 1, 1)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, equal_nan=True)


def check_routes(logits: Tensor, count: int) -> Routes:
    wanted, found = reference.route(logits, count), experts.route(logits, count)
    close(found.shares, wanted.shares)
    assert torch.equal(found.starts, wanted.starts)
    assert torch.equal(found.order, wanted.order)
    return found


def weights_of(count: int, outs: int, ins: int) -> list[ExpertWeight]:
    """Random matrices, in float32 and in e4m3."""
    weight = torch.randn(count, outs, ins) / ins**0.5
    return [ExpertWeight(weight), reference.quantise_experts(weight)]


def check_products(tokens: int, count: int, ranks: int, dim: int, inner: int) -> None:
    x = torch.randn(tokens, dim + 3)[:, :dim]  # rows lie apart
    logits = torch.randn(tokens, count + 5)[:, :count]
    routes = check_routes(logits, ranks)
    for into, out_of in zip(weights_of(count, 2 * inner, dim), weights_of(count, dim, inner), strict=True):
        inside = reference.experts_in(x, routes, into)
        wanted = reference.experts_out(inside, routes, out_of)
        for tiling in (SINGLE, MANY[0]) if tokens == 1 else (None, *MANY) if tokens <= 17 else (None,):
            close(experts.experts_in(x, routes, into, tiling), inside)
            close(experts.experts_out(inside, routes, out_of, tiling), wanted)


def check_uneven_routes() -> None:
    """All rows to the same experts, and none to others; many experts, ties, and rows that are no numbers."""
    check_routes(torch.randn(3, 64), 8)
    for tokens in (1, 5, 64, 130):
        check_routes(torch.arange(10.0).repeat(tokens, 1), 3)
        check_routes(torch.zeros(tokens, 10), 3)
    logits = torch.randn(9, 6)
    logits[4] = torch.nan
    logits[7] = -torch.inf
    routes = experts.route(logits, 2)
    assert sorted(routes.order.tolist()) == list(range(18))
    assert routes.starts.tolist()[-1] == 18
    chosen = torch.searchsorted(routes.starts[1:].long(), torch.arange(18), right=True)
    both = torch.empty(18, dtype=torch.long).index_copy_(0, routes.order.long(), chosen).view(9, 2)
    assert (both[:, 0] != both[:, 1]).all()
    assert routes.shares.isnan().any(dim=1).tolist() == [row in (4, 7) for row in range(9)]


def check_sums() -> None:
    for rows, parts, width in ((1, 8, 40), (5, 3, 64), (4, 0, 33)):
        for shifted in (False, True):
            for normed in (False, True):
                x, more = torch.randn(rows, width), torch.randn(rows, parts, width) if parts else None
                shift = torch.randn(width) if shifted else None
                norm = (torch.randn(width), torch.randn(width), 1e-5) if normed else None
                wanted, found = x.clone(), x.clone()
                normal = reference.add_and_norm(wanted, more, shift, norm)
                close(experts.add_and_norm(found, more, shift, norm), normal)
                close(found, wanted)


def main() -> None:
    torch.manual_seed(0)
    for sizes in SIZES:
        check_products(*sizes)
    check_uneven_routes()
    check_sums()
    print("interpreted kernels agree")

"""Products over a few rows that add terms of adapters."""

import importlib.util

import pytest
import torch
from torch import Tensor

from photonlite.kernels.reference.row_adapters import RowTerms
from photonlite.kernels.row_adapters import shrink
from photonlite.kernels.small_batch_gemm import (
    MAX_ROWS,
    Handshake,
    linear_in,
    linear_out,
    run_product,
)
from photonlite.kernels.tilings import SEVERAL, Tiling, programs_of
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.adapter_cases import block_terms

SIZES = 24, 40, 50, 16


def slots_of(rows: int, slots: int) -> list[int]:
    """Return slots of rows: the last one, none, and others."""
    return [slots if not row else row * 5 % (slots + 1) for row in range(rows)]


def test_each_row_gets_the_terms_of_its_own_slot_and_others_none() -> None:
    torch.manual_seed(0)
    dim, _, inner, attended = SIZES
    terms, columns = block_terms(3, 4, SIZES, torch.float64)
    slots = [3, 0, 1, 0, 2]
    index, low = torch.tensor(slots, dtype=torch.int32), torch.zeros(5, columns, dtype=torch.float64)
    x, inside = torch.randn(5, dim).double(), torch.randn(5, attended + inner).double()
    norm, weight = (torch.randn(dim).double(), torch.randn(dim).double(), 1e-5), torch.randn(dim, attended + inner)

    normal = shrink(x, RowTerms(index, low, terms["of_norm"]), norm)
    shrink(inside, RowTerms(index, low, terms["of_inside"]))
    found, bias = x.clone(), torch.zeros(dim).double()
    linear_out(inside, weight.double(), bias, found, None, None, RowTerms(index, low, terms["out"]))

    for row, slot in enumerate(slots):
        wanted = x[row] + weight.double() @ inside[row]
        for term, given in zip(
            terms["out"], (normal[row], inside[row, :attended], inside[row, attended:]), strict=True
        ):
            wanted = wanted + (term.stack.b[slot] @ (term.stack.a[slot] @ given) if slot else 0)
        torch.testing.assert_close(found[row], wanted)


def test_the_kernel_for_a_single_row_refuses_terms() -> None:
    terms, columns = block_terms(1, 4, SIZES, torch.float32)
    added = RowTerms(torch.ones(1, dtype=torch.int32), torch.zeros(1, columns), terms["into"])
    x, weight = torch.zeros(1, 24), torch.zeros(90, 24)
    with pytest.raises(ValueError, match="adds no terms of adapters"):
        run_product(x, weight, None, raw=x, activated=x, split=90, tiling=Tiling(8, 32, stages=0), added=added)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_row_adapters")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(
    ("rows", "rank", "slots", "dtype"),
    [
        *((rows, 16, 8, torch.bfloat16) for rows in (1, 2, 8, 33, MAX_ROWS)),
        (8, 4, 3, torch.bfloat16),
        (33, 64, 2, torch.bfloat16),
        (1, 6, 5, torch.float16),
        (33, 6, 5, torch.float16),
    ],
)
def test_products_on_a_card_add_the_terms(rows: int, rank: int, slots: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    dim, qkv, inner, attended = sizes = 2048, 6144, 8192, 2048

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(size, device="cuda") * scale).to(dtype)

    terms, columns = block_terms(slots, rank, sizes, dtype, "cuda")
    index = torch.tensor(slots_of(rows, slots), dtype=torch.int32, device="cuda")
    low = torch.full((rows, columns), torch.nan, device="cuda")
    x, norm, cat = random(rows, dim), (random(dim), random(dim), 1e-5), random(rows, attended + inner)
    w_in, w_out = random(qkv + inner, dim, scale=dim**-0.5), random(dim, attended + inner, scale=0.01)
    b_in, b_out = random(qkv + inner), torch.randn(dim, device="cuda")
    ready = torch.zeros(2, dtype=torch.int32, device="cuda")
    shake = Handshake(ready[:1], ready[1:], programs_of(max(rows, SEVERAL), *w_in.shape), attended)

    def added(name: str) -> RowTerms:
        return RowTerms(index, low, terms[name])

    raw, stream, plain_raw, plain_stream = random(rows, qkv), x.clone(), random(rows, qkv), x.clone()
    normal = shrink(x, added("of_norm"), norm)
    linear_in(normal, None, w_in, b_in, None, raw, cat[:, attended:], shake, added("into"))
    shrink(cat, added("of_inside"))
    linear_out(cat, w_out, b_out, stream, None, shake, added("out"))
    torch.cuda.synchronize()

    wanted_normal = torch.nn.functional.layer_norm(x.double(), (dim,), *(one.double() for one in norm[:2]), norm[2])
    assert error(normal, wanted_normal) < 4e-3
    inside, gathered = normal.double() @ w_in.double().T + b_in, index.long()
    wanted = x.double() + cat.double() @ w_out.double().T + b_out
    for target, names, given in ((inside, "into", [normal] * 2), (wanted, "out", [normal, cat, cat])):
        for term, source in zip(terms[names], given, strict=True):
            a, b = (one.nan_to_num(0.0).double()[gathered] for one in (term.stack.a, term.stack.b))
            small = torch.einsum("trk,tk->tr", a, source[:, term.begin : term.begin + a.shape[2]].double())
            target[:, term.first : term.first + b.shape[1]] += torch.einsum("tnr,tr->tn", b, small)
    assert error(raw, inside[:, :qkv]) < 4e-3
    assert error(cat[:, attended:], torch.nn.functional.gelu(inside[:, qkv:], approximate="tanh")) < 8e-3
    assert error(stream, wanted) < 4e-3

    none = RowTerms(index, low, ())  # the same tiles without terms
    linear_in(normal, None, w_in, b_in, None, plain_raw, torch.empty_like(cat[:, attended:]), shake, none)
    linear_out(cat, w_out, b_out, plain_stream, None, shake, none)
    assert torch.equal(raw[index == 0], plain_raw[index == 0])
    assert torch.equal(stream[index == 0], plain_stream[index == 0])

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.paged_attention import paged_attention, parts_of
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.reference.attention import FP8, dequantise, quantise
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.pages import in_fp8, scattered


def dense(row: int, q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, lengths: Tensor) -> Tensor:
    """One row's attention over its own positions, looked up one by one: [H, D]."""
    page = keys.shape[1]
    places = [divmod(position, page) for position in range(int(lengths[row]))]
    group = q.shape[1] // keys.shape[2]
    found = [[store[int(page_table[row, index]), place] for index, place in places] for store in (keys, values)]
    k, v = (torch.stack(vectors).repeat_interleave(group, dim=1) for vectors in found)  # [S, H, D]
    weights = (torch.einsum("hd,shd->hs", q[row], k) / q.shape[2] ** 0.5).softmax(dim=-1)
    return torch.einsum("hs,shd->hd", weights, v)


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 4), (6, 2)]),
    dim=st.sampled_from([4, 6]),
    page=st.sampled_from([1, 4, 8]),
)
@settings(max_examples=40)
def test_a_row_sees_its_own_positions_and_nothing_else(
    lengths: list[int], heads: tuple[int, int], dim: int, page: int
) -> None:
    torch.manual_seed(0)
    case = scattered(lengths, *heads, dim, page, torch.float64)

    out = paged_attention(*case)

    for row, length in enumerate(lengths):
        wanted = dense(row, *case) if length else torch.zeros(heads[0], dim, dtype=torch.float64)
        torch.testing.assert_close(out[row], wanted, rtol=1e-10, atol=1e-10)


def test_rows_equal_contiguous_attention_in_half_precision() -> None:
    torch.manual_seed(1)
    q, keys, values, table, lengths = scattered([16], 4, 2, 8, 4, torch.bfloat16)
    k, v = (store[table[0, :4].long()].flatten(0, 1).transpose(0, 1)[None] for store in (keys, values))

    wanted = functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]

    torch.testing.assert_close(paged_attention(q, keys, values, table, lengths), wanted)


def test_writing_fills_the_slots_and_no_others() -> None:
    keys, values = torch.zeros(3, 4, 2, 5), torch.zeros(3, 4, 2, 5)
    k, v = torch.randn(3, 2, 5), torch.randn(3, 2, 5)

    reference.write_kv(keys, values, k, v, torch.tensor([11, 0, 5]))

    for store, rows in ((keys, k), (values, v)):
        assert torch.equal(store[[2, 0, 1], [3, 0, 1]], rows)
        assert int((store.abs().sum(dim=(-1, -2)) > 0).sum()) == 3


def test_pages_that_lie_head_by_head_are_written_in_place() -> None:
    memory = torch.zeros(3, 2, 4, 5)
    k = torch.randn(1, 2, 5)

    reference.write_kv(memory.transpose(1, 2), torch.zeros(3, 4, 2, 5), k, k, torch.tensor([6]))

    assert torch.equal(memory[1, :, 2], k[0])


@given(
    number=st.floats(-600, 600).filter(lambda number: number == 0 or abs(number) > 1e-6),
    scale=st.integers(-12, 6).map(lambda power: 2.0**power),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_fp8_keeps_numbers_to_a_sixteenth_and_cuts_those_beyond_its_range(
    number: float, scale: float, dtype: torch.dtype
) -> None:
    x = torch.tensor(number, dtype=dtype) * scale

    stored = quantise(x, FP8, scale)
    found = dequantise(stored, dtype, scale)

    assert (stored.dtype, found.dtype) == (FP8, dtype)
    wanted = x.double().clamp(-448 * scale, 448 * scale)
    # Four bits of significand above 2**-6, steps of 2**-9 below.
    bound = max(abs(float(wanted)) / 16, 2.0**-10 * scale)
    assert abs(float(found.double() - wanted)) <= bound * (1 + 1e-6)


def test_fp8_hides_no_nan() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
    assert torch.equal(dequantise(quantise(x, FP8, 0.5), x.dtype, 0.5)[1:], torch.tensor([224.0, -224.0, 224.0]))
    assert dequantise(quantise(x, FP8, 0.5), x.dtype, 0.5)[0].isnan()


def test_pages_in_fp8_are_read_as_they_were_written() -> None:
    torch.manual_seed(4)
    q, k, v = torch.randn(2, 4, 6), torch.randn(2, 9, 2, 6), 1e-3 * torch.randn(2, 9, 2, 6)
    keys, values = (torch.empty(7, 2, 4, 6, dtype=FP8).transpose(1, 2) for _ in range(2))
    for store in (keys, values):
        store.fill_(torch.nan)
    table = torch.tensor([[3, 1, 5], [6, 2, 4]], dtype=torch.int32)
    for row in range(2):
        slots = torch.tensor([int(table[row, position // 4]) * 4 + position % 4 for position in range(9)])
        reference.write_kv(keys, values, k[row], v[row], slots, 0.25, 2.0**-12)

    out = paged_attention(q, keys, values, table, torch.tensor([9, 7]), 0.25, 2.0**-12)

    for row, length in enumerate((9, 7)):
        rounded = [
            dequantise(quantise(x[row, :length], FP8, scale), x.dtype, scale).transpose(0, 1)[None]
            for x, scale in ((k, 0.25), (v, 2.0**-12))
        ]
        wanted = functional.scaled_dot_product_attention(q[row][None, :, None], *rounded, enable_gqa=True)[0, :, 0]
        torch.testing.assert_close(out[row], wanted)
    assert keys[0].float().isnan().all()


@pytest.mark.parametrize(
    ("rows", "kv_heads", "positions", "parts"),
    [(1, 32, 4096, 32), (32, 32, 4096, 4), (64, 32, 4096, 2), (256, 32, 4096, 1), (1, 1, 0, 1), (1, 4, 65, 2)],
)
def test_few_rows_are_cut_into_many_parts(rows: int, kv_heads: int, positions: int, parts: int) -> None:
    assert parts_of(rows, kv_heads, positions, block=64) == parts


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_paged")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [(32, 32, 64, 16), (3, 1, 48, 8), (24, 8, 128, 128), (6, 2, 40, 1)])
def test_the_kernels_agree_with_the_reference_on_the_device(
    shape: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(2)
    for lengths in ([1], [850], [2047, 0, 64, 65, 127, 128], list(range(1, 65))):
        case = scattered(lengths, *shape, dtype)
        wanted = reference.paged_attention(
            *(tensor.float() if tensor.is_floating_point() else tensor for tensor in case)
        )
        out = paged_attention(*(tensor.cuda() for tensor in case))
        torch.testing.assert_close(out.float().cpu(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("shape", [(32, 32, 64, 16), (3, 1, 48, 8), (24, 8, 128, 128)])
def test_the_kernels_read_fp8_as_the_reference_does(shape: tuple[int, int, int, int]) -> None:
    if not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    torch.manual_seed(5)
    for lengths in ([850], [2047, 0, 64, 65]):
        case = in_fp8(scattered(lengths, *shape, torch.float32), 0.25, 0.5)
        wanted = reference.paged_attention(*case, 0.25, 0.5)
        out = paged_attention(*(tensor.cuda() for tensor in case), 0.25, 0.5)
        torch.testing.assert_close(out.cpu(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@gpu
def test_a_replayed_graph_reads_the_lengths_of_the_day() -> None:
    torch.manual_seed(3)
    q, keys, values, table, lengths = scattered([300, 200], 4, 4, 64, 16, torch.float32, "cuda")
    paged_attention(q, keys, values, table, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention(q, keys, values, table, lengths)

    for now in ([300, 200], [1, 0], [17, 199]):
        lengths.copy_(torch.tensor(now))
        graph.replay()
        torch.testing.assert_close(out, reference.paged_attention(q, keys, values, table, lengths))

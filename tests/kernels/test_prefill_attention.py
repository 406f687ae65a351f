import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.kernels.prefill_attention import paged_prefill_attention
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.prompts import Prompts, Span, scattered_prompts


def attended(
    case: Prompts, *, k_scale: float = 1.0, v_scale: float = 1.0, rule: reference.ScoreRule | None = None
) -> Tensor:
    room = torch.full((len(case.q), case.q[0].numel()), torch.nan, dtype=case.q.dtype, device=case.q.device)
    paged_prefill_attention(*case.arguments, room, k_scale=k_scale, v_scale=v_scale, rule=rule)
    return room


def dense(span: Span, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One row's attention, one query at a time: [count, H * D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.to(q.dtype).repeat_interleave(group, dim=1) for x in (k, v))  # [S, H, D]
    found = []
    for index in range(span.count):
        seen = max(span.start + index + 1, span.block)
        weights = (torch.einsum("hd,shd->hs", q[index], k[:seen]) / q.shape[2] ** 0.5).softmax(dim=-1)
        found.append(torch.einsum("hs,shd->hd", weights, v[:seen]).flatten())
    return torch.stack(found)


fresh = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda sizes: Span(0, sum(sizes), sizes[0]))
resumed = st.builds(Span, st.integers(1, 12), st.integers(1, 9))


@given(
    spans=st.lists(fresh | resumed, min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (3, 1), (6, 2)]),
    page=st.sampled_from([1, 4, 32]),
    tile=st.sampled_from([1, 4, 64]),
)
@settings(max_examples=40)
def test_every_query_sees_what_is_before_it_and_its_block(
    spans: list[Span], heads: tuple[int, int], page: int, tile: int
) -> None:
    torch.manual_seed(0)
    case = scattered_prompts(spans, *heads, 6, page, torch.float64, tile=tile)

    out = attended(case)

    first = 0
    for row, span in enumerate(spans):
        wanted = dense(span, case.q[first : first + span.count], case.k[row], case.v[row])
        torch.testing.assert_close(out[first : first + span.count], wanted, rtol=1e-10, atol=1e-10)
        first += span.count


def test_keys_and_values_in_8_bits_are_scaled_back() -> None:
    torch.manual_seed(1)
    span = Span(3, 9)
    case = scattered_prompts([span], 4, 2, 8, 4, torch.float64, kv_dtype=FP8, scale=0.125)

    out = attended(case, k_scale=0.125, v_scale=0.125)

    torch.testing.assert_close(out, dense(span, case.q, case.k[0], case.v[0]))


def test_positions_of_no_tile_are_left_alone() -> None:
    case = scattered_prompts([Span(0, 6), Span(0, 5)], 2, 2, 4, 4, torch.float32, tile=4)
    case.tiles[1] = 0  # positions 4 and 5

    out = attended(case)

    assert out.isnan().all(dim=1).tolist() == [False] * 4 + [True] * 2 + [False] * 5


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_prefill")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
MIXED = [Span(0, 749, 730), Span(730, 20), Span(0, 130), Span(64, 1), Span(0, 64, 64), Span(100, 65)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize(
    "shape", [(32, 32, 64, 16), (3, 1, 48, 8), (24, 8, 128, 128), (8, 4, 256, 16), (6, 2, 40, 1), (3, 1, 8, 4)]
)
@pytest.mark.parametrize("rule", [None, reference.ScoreRule(0.2, 3.0)], ids=["free", "capped"])
def test_the_kernel_agrees_with_the_reference_on_the_device(
    shape: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float, rule: reference.ScoreRule | None
) -> None:
    torch.manual_seed(2)
    case = scattered_prompts(MIXED, *shape, dtype)
    room = torch.zeros(len(case.q), shape[0] * shape[2])
    wide = [tensor.float() if tensor.is_floating_point() else tensor for tensor in case.arguments]
    reference.paged_prefill_attention(*wide, room, rule=rule)

    torch.testing.assert_close(attended(case.to("cuda"), rule=rule).float().cpu(), room, atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
@gpu
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="the card has no FP8"
)
def test_keys_and_values_in_8_bits_agree_with_the_reference_on_the_device() -> None:
    torch.manual_seed(3)
    case = scattered_prompts(MIXED, 32, 32, 64, 16, torch.bfloat16, kv_dtype=FP8, scale=0.5)
    room = torch.zeros(len(case.q), 32 * 64)
    reference.paged_prefill_attention(case.q.float(), *case.arguments[1:], room, k_scale=0.5, v_scale=0.5)

    out = attended(case.to("cuda"), k_scale=0.5, v_scale=0.5)

    torch.testing.assert_close(out.float().cpu(), room, atol=1e-2, rtol=1e-2)

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.batch import PageCopy
from photonlite.kernels.reference.attention import FP8, dequantise, quantise
from photonlite.models.base import ModelShape
from photonlite.models.layers import attend
from photonlite.runner.attention import DecodeAttention, PagedCache, PrefillAttention
from photonlite.runner.slot import PAGES, PromptRow
from tests.tiny import CPU

PAGE, PAGES_A_ROW, KV_HEADS, HEADS, DIM = 4, 6, 2, 4, 8
SHAPE = ModelShape(2, KV_HEADS, DIM, PAGE * PAGES_A_ROW, 6, 0, HEADS * DIM, 10)


class Rows:
    """Random keys and values of some rows, and a cache that holds their first positions among NaN.

    With scales the cache is in FP8.
    """

    def __init__(self, cached: list[int], seed: int, scales: tuple[tuple[float, float], ...] = ()) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = len(cached)
        size = (count, PAGE * PAGES_A_ROW, KV_HEADS, DIM)
        self.k, self.v = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
        self.q = torch.randn(count, PAGE * PAGES_A_ROW, HEADS, DIM, generator=generator, dtype=torch.float64)
        pages = 1 + count * PAGES_A_ROW
        self.cache = PagedCache(SHAPE, pages, PAGE, CPU, FP8 if scales else torch.float64, scales)
        k_scale, v_scale = self.cache.scales[1]
        k, v = quantise(self.k, self.cache.keys.dtype, k_scale), quantise(self.v, self.cache.keys.dtype, v_scale)
        self.seen_k, self.seen_v = dequantise(k, torch.float64, k_scale), dequantise(v, torch.float64, v_scale)
        for kept in (self.cache.keys, self.cache.values):
            kept.fill_(torch.nan)
        ids = random.Random(seed).sample(range(1, pages), pages - 1)
        self.table = torch.tensor(ids).view(count, PAGES_A_ROW)
        for row, filled in enumerate(cached):
            for position in range(filled):
                page, place = self.table[row, position // PAGE], position % PAGE
                self.cache.keys[1, page, place] = k[row, position]
                self.cache.values[1, page, place] = v[row, position]

    def slots(self, positions: Tensor) -> Tensor:
        return self.table.gather(1, positions // PAGE) * PAGE + positions % PAGE

    def seen(self, row: int, start: int, length: int, block: int) -> Tensor:
        """What positions from `start` on see without a cache: those up to themselves, and those of their block."""
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mask[:block, :block] = True
        q, k, v = (x[row : row + 1, :length] for x in (self.q, self.seen_k, self.seen_v))
        return attend(q, k, v, mask)[0, start:]


def prefilled(rows: Rows, spans: list[tuple[int, int, int]], attended: list[int] | None = None) -> Tensor:
    """Attend in layer 1 with (start, count, block) of some rows, all unless given, on one axis."""
    attended = list(range(len(spans))) if attended is None else attended
    index = torch.tensor([row for row, (_, count, _) in zip(attended, spans, strict=True) for _ in range(count)])
    positions = torch.cat([torch.arange(start, start + count) for start, count, _ in spans])
    slots = rows.table[index, positions // PAGE] * PAGE + positions % PAGE
    prompts = [PromptRow(row, *span[:2], 0, 0, span[2], None) for row, span in zip(attended, spans, strict=True)]
    attention = PrefillAttention(rows.cache, prompts, slots.int(), rows.table.int())
    return attention(1, rows.q[None, index, positions], rows.k[None, index, positions], rows.v[None, index, positions])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 14), st.integers(1, 9)), min_size=1, max_size=4), st.integers(0, 99))
def test_a_resumed_prefill_sees_what_is_cached_and_itself(spans: list[tuple[int, int]], seed: int) -> None:
    rows = Rows([start for start, _ in spans], seed)

    out = prefilled(rows, [(*span, 0) for span in spans])[0].split([count for _, count in spans])

    for row, (start, count) in enumerate(spans):
        assert torch.allclose(out[row], rows.seen(row, start, start + count, 0), atol=1e-12)
        for position in range(start, start + count):
            page = rows.table[row, position // PAGE]
            assert torch.equal(rows.cache.values[1, page, position % PAGE], rows.v[row, position])


@pytest.mark.parametrize("block", [0, 6, 9])
def test_a_block_is_seen_in_both_directions(block: int) -> None:
    rows = Rows([0, 0], seed=1)

    out = prefilled(rows, [(0, 9, block), (0, 9, block)])[0].split(9)

    for row in range(2):
        assert torch.allclose(out[row], rows.seen(row, 0, 9, block), atol=1e-12)
    assert rows.cache.keys[0].isnan().all()  # the other layer


def test_a_decode_step_sees_all_positions_up_to_its_own() -> None:
    cached = [0, 3, 4, 17]
    rows = Rows(cached, seed=2)
    positions = torch.tensor(cached)[:, None]
    fixed = torch.cat((torch.zeros_like(positions), positions, rows.slots(positions)), dim=1)
    attention = DecodeAttention(rows.cache, torch.cat((fixed, rows.table), dim=1).int())
    index = torch.arange(4)[:, None], positions

    out = attention(1, rows.q[index], rows.k[index], rows.v[index])

    assert fixed.shape[1] == PAGES
    for row, position in enumerate(cached):
        assert torch.allclose(out[row], rows.seen(row, position, position + 1, 0), atol=1e-12)


@pytest.mark.parametrize("block", [0, 6])
def test_in_fp8_a_position_sees_the_same_numbers_whichever_launch_wrote_them(block: int) -> None:
    scales = ((1.0, 1.0), (0.25, 2.0**-3))
    rows = Rows([0, 7], seed=3, scales=scales)

    out = prefilled(rows, [(0, 9, block)], [0])
    assert torch.allclose(out[0], rows.seen(0, 0, 9, block), atol=1e-12)
    assert not torch.allclose(rows.seen_k, rows.k, rtol=1e-3)

    out = prefilled(rows, [(7, 2, 0)], [1])
    assert torch.allclose(out[0], rows.seen(1, 7, 9, 0), atol=1e-12)

    position = torch.tensor([[9], [9]])
    fixed = torch.cat((torch.zeros_like(position), position, rows.slots(position)), dim=1)
    decode = DecodeAttention(rows.cache, torch.cat((fixed, rows.table), dim=1).int())
    out = decode(1, rows.q[:, 9:10], rows.k[:, 9:10], rows.v[:, 9:10])
    for row in range(2):
        assert torch.allclose(out[row], rows.seen(row, 9, 10, 0), atol=1e-12)


def test_scales_belong_to_fp8_and_to_every_layer() -> None:
    for dtype, scales in ((torch.float64, ((1.0, 1.0),) * 2), (FP8, ((1.0, 1.0),))):
        with pytest.raises(AssertionError, match="pairs of scales"):
            PagedCache(SHAPE, 4, PAGE, CPU, dtype, scales)


@pytest.mark.parametrize("dtype", [torch.float64, FP8])
def test_copies_take_whole_pages_of_all_layers_in_their_order(dtype: torch.dtype) -> None:
    cache = PagedCache(SHAPE, 4, PAGE, CPU, dtype)
    for kept in (cache.keys, cache.values):
        kept.copy_(torch.randn(kept.shape).to(dtype))
    keys, values = cache.keys.double(), cache.values.double()

    cache.copy([PageCopy(3, 1), PageCopy(1, 2)])

    for now, before in ((cache.keys, keys), (cache.values, values)):
        for page, source in enumerate((0, 3, 3, 3)):
            assert torch.equal(now[:, page].double(), before[:, source])

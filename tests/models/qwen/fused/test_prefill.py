import copy

import pytest
import torch
from torch import Tensor

from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import PackedPrompts
from photonlite.models.qwen.fused.layers import block_weights, rotary_rows
from photonlite.models.qwen.fused.prefill import SHORT, FusedPrefill
from photonlite.models.qwen.text import TextDecoder, axes_on
from photonlite.runner.buffers import PagedCache
from photonlite.runner.prefill import PromptRow, prompt_attention
from tests.kernels.prompts import Span, tiled
from tests.models.qwen.fused.steps import CONFIGS, random_decoder, shape_of, text_config

PAGE, PAGES = 4, 30
SPANS = [Span(0, 31), Span(0, 9), Span(0, 26), Span(0, 1)]
LATER = [Span(31, 4), Span(9, 20), Span(26, 1), Span(1, 2)]


def fused_prefill(text: TextDecoder, *, fp8: bool = False, short: bool = False) -> FusedPrefill:
    config, device = text.config, text.words.device
    return FusedPrefill(
        block_weights(text), rotary_rows(config, device), axes_on(config, device), config.heads, fp8=fp8, short=short
    )  # fmt: skip


class Case:
    """Random inputs of some rows, with a separate cache for each way to run them.

    Args:
        text: The decoder.
        kv_dtype: Of the caches.
        layers: Behind which something is added to the stream.
        axes: Whether positions are rotated by three coordinates of their own.
    """

    def __init__(self, text: TextDecoder, kv_dtype: torch.dtype, *, layers: int = 0, axes: bool = True) -> None:
        self.text, self.dtype, self.device = text, text.words.dtype, text.words.device
        shape = shape_of(text.config)
        scales = [(0.5, 0.25)] * shape.layers if kv_dtype == FP8 else []
        self.caches = [PagedCache(shape, 1 + 4 * PAGES, PAGE, self.device, kv_dtype, scales) for _ in range(2)]
        for cache in self.caches:
            for kept in (cache.keys, cache.values):
                kept.copy_(torch.full((), torch.nan).to(kv_dtype).expand(kept.shape))
        order = torch.randperm(4 * PAGES, generator=torch.Generator().manual_seed(0)) + 1
        self.table = order.view(4, PAGES).int().to(self.device)
        self._layers, self._axes = layers, axes

    def inputs(self, spans: list[Span], seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings ``[T, dim]``, coordinates of positions ``[T, 3]``, and what is added ``[D, T, dim]``."""
        generator = torch.Generator().manual_seed(seed)
        count, dim = sum(span.count for span in spans), self.text.config.dim
        x = torch.randn(count, dim, generator=generator)
        turns = torch.randint(0, 200, (count, 3), generator=generator)
        added = torch.randn(self._layers, count, dim, generator=generator)
        added *= torch.rand(count, 1, generator=generator) > 0.5
        if not self._axes:
            turns = torch.cat([torch.arange(span.start, span.start + span.count) for span in spans])[:, None].expand(
                -1, 3
            )
        return x.to(self.device, self.dtype), turns.int().to(self.device), added.to(self.device, self.dtype)

    def slots(self, row: int, span: Span) -> tuple[Tensor, Tensor]:
        positions = torch.arange(span.start, span.start + span.count, device=self.device)
        return positions, self.table[row, positions // PAGE] * PAGE + positions % PAGE

    def fused(self, decoder: FusedPrefill, spans: list[Span], inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Run the spans on one axis, with padding behind them and an unused row."""
        padding = 3
        places = [self.slots(row, span) for row, span in enumerate(spans)]
        positions, slots = (
            torch.cat((*column, torch.zeros(padding, device=self.device))) for column in zip(*places, strict=True)
        )
        last = torch.tensor([span.count for span in spans]).cumsum(0) - 1
        lengths = torch.tensor([span.start + span.count for span in spans] + [0])
        x, turns, added = inputs
        prompts = PackedPrompts(
            positions.int(),
            slots.int(),
            tiled(spans, 64, empty=2).to(self.device),
            torch.cat((self.table, self.table[:1])),
            torch.cat((last, torch.zeros(1))).int().to(self.device),
            lengths.int().to(self.device),
            torch.nn.functional.pad(turns, (0, 0, 0, padding)) if self._axes else None,
            torch.nn.functional.pad(added, (0, 0, 0, padding)) if self._layers else None,
        )
        kept = torch.nn.functional.pad(x, (0, 0, 0, padding), value=torch.nan)
        given = kept.clone()
        with torch.inference_mode():
            found = decoder(given, prompts, self.caches[0])[: len(spans)]
        assert torch.equal(given[: len(x)], x), "the caller's input was overwritten"
        return found

    def plain(self, spans: list[Span], inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        states, first = [], 0
        for row, span in enumerate(spans):
            x, turns = (each[first : first + span.count] for each in inputs[:2])
            added = inputs[2][:, None, first : first + span.count] if self._layers else None
            prompt = PromptRow(row, span.start, span.count, first=0, leading=0, block=0, images=(), turns=None)
            attention = prompt_attention(self.caches[1], [prompt], self.slots(row, span)[1], self.table)
            with torch.inference_mode():
                states.append(self.text(x[None], turns.t()[:, None], attention, added)[0, -1])
            first += span.count
        return torch.stack(states)


def stored(cache: PagedCache) -> Tensor:
    """Return what was written behind the scratch page, and -1 elsewhere."""
    both = torch.stack((cache.keys[:, 1:].double(), cache.values[:, 1:].double()))
    return both.nan_to_num(-1.0)


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize("layers", [0, 2, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_on_one_axis_equal_the_plain_decoder(name: str, layers: int, kv_dtype: torch.dtype) -> None:
    text = random_decoder(*CONFIGS[name]).double()
    case = Case(text, kv_dtype, layers=min(layers, text.config.layers), axes=layers != 0)
    decoder = fused_prefill(text)

    for spans, seed in ((SPANS, 0), (LATER, 1)):
        inputs = case.inputs(spans, seed)
        torch.testing.assert_close(case.fused(decoder, spans, inputs), case.plain(spans, inputs), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-9, rtol=1e-9)


FEW, RUNS = [Span(0, 5), Span(0, 7), Span(0, 1)], [Span(5, 2), Span(7, 8), Span(1, 3)]


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize("layers", [0, 2, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_few_positions_run_as_rows_of_a_decode_step(name: str, layers: int, kv_dtype: torch.dtype) -> None:
    text = random_decoder(*CONFIGS[name]).double()
    case = Case(text, kv_dtype, layers=min(layers, text.config.layers), axes=layers != 0)
    decoder = fused_prefill(text, short=True)

    for spans, seed in ((FEW, 0), (RUNS, 1)):
        inputs = case.inputs(spans, seed)
        assert len(inputs[0]) + 3 <= SHORT
        torch.testing.assert_close(case.fused(decoder, spans, inputs), case.plain(spans, inputs), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-9, rtol=1e-9)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("layers", [0, 2])
def test_8_bit_products_change_states_a_little(layers: int) -> None:
    text = random_decoder("qwen3_vl", text_config(dim=96, ff_dim=128))
    case = Case(text, torch.float32, layers=layers)
    inputs = case.inputs(SPANS, 0)

    found = case.fused(fused_prefill(text, fp8=True), SPANS, inputs)

    assert 1e-4 < distance(found, case.plain(SPANS, inputs)) < 0.1


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
WIDE = {"head_dim": 128, "sections": (24, 20, 20)}
SHAPES = {
    "3": ("qwen3_vl", text_config(dim=512, ff_dim=1536, layers=4, heads=8, kv_heads=4, **WIDE)),
    "2.5": ("qwen2_5_vl", text_config(dim=896, ff_dim=1024, layers=3, heads=7, kv_heads=1, interleaved=False, **WIDE)),
}


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_card_rounding_costs_no_more_than_in_the_plain_decoder(name: str) -> None:
    text = random_decoder(*SHAPES[name]).bfloat16()
    rounded, exact = text.cuda(), copy.deepcopy(text).float().cuda()
    fused, truth = Case(rounded, torch.bfloat16, layers=3), Case(exact, torch.float32, layers=3)
    decoder = fused_prefill(rounded, short=True)
    for spans, seed in ((SPANS, 0), (LATER, 1), (FEW, 2), (RUNS, 3)):
        inputs = fused.inputs(spans, seed)
        wanted = truth.plain(spans, (inputs[0].float(), inputs[1], inputs[2].float()))
        error = distance(fused.fused(decoder, spans, inputs), wanted)
        assert error < 1.2 * distance(fused.plain(spans, inputs), wanted) + 1e-3

import copy

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import ModelShape, PackedPrompts
from photonlite.models.paligemma.fused.layers import block_weights, rotary_rows
from photonlite.models.paligemma.fused.prefill import FusedPrefill
from photonlite.models.paligemma.text import TextDecoder
from photonlite.runner.buffers import PagedCache
from photonlite.runner.prefill import PromptRow, prompt_attention
from tests.kernels.prompts import Span, tiled
from tests.models.paligemma.fused.test_decode import CONFIGS, WIDE, distance, random_text

PAGE, PAGES, PADDING = 4, 60, 3
PROMPTS = [Span(0, 31, 31), Span(0, 9, 6), Span(0, 70, 70), Span(0, 1, 1)]
LATER = [Span(31, 4), Span(9, 20), Span(70, 1), Span(1, 2)]


def fused_prefill(text: TextDecoder) -> FusedPrefill:
    return FusedPrefill(block_weights(text), rotary_rows(text.config, text.words.device))


class Case:
    """A decoder, and a cache of NaN for each way to run prompts of four rows; their pages are scattered."""

    def __init__(self, text: TextDecoder, kv_dtype: torch.dtype) -> None:
        self.text, config, self.device = text, text.config, text.words.device
        shape = ModelShape(
            layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, max_context=config.max_context,
            prefix_length=None, bos_id=None, dim=config.dim, vocab_size=config.vocab_size, prefix_lm=True,
        )  # fmt: skip
        scales = [(0.5, 0.25)] * shape.layers if kv_dtype == FP8 else []
        self.caches = [PagedCache(shape, 1 + 4 * PAGES, PAGE, self.device, kv_dtype, scales) for _ in range(2)]
        for cache in self.caches:
            for kept in (cache.keys, cache.values):
                kept.copy_(torch.full((), torch.nan).to(kv_dtype).expand(kept.shape))
        order = torch.randperm(4 * PAGES, generator=torch.Generator().manual_seed(0)) + 1
        self.table = order.view(4, PAGES).int().to(self.device)

    def input(self, spans: list[Span]) -> Tensor:
        count, draw = sum(span.count for span in spans), torch.Generator().manual_seed(len(spans) + spans[0].start)
        return torch.randn(count, self.text.config.dim, generator=draw).to(self.text.words)

    def slots(self, row: int, span: Span) -> tuple[Tensor, Tensor]:
        positions = torch.arange(span.start, span.start + span.count, device=self.device)
        return positions, self.table[row, positions // PAGE] * PAGE + positions % PAGE

    @torch.inference_mode()
    def fused(self, decoder: FusedPrefill, spans: list[Span], x: Tensor) -> Tensor:
        """Run the spans on one axis, with padding behind them and an unused row."""
        places = [self.slots(row, span) for row, span in enumerate(spans)]
        positions, slots = (pad(torch.cat(column), (0, PADDING)).int() for column in zip(*places, strict=True))
        ends = [span.start + span.count for span in spans]
        last = torch.tensor([span.count for span in spans]).cumsum(0) - 1
        prompts = PackedPrompts(
            positions,
            slots,
            tiled(spans, 64, empty=2).to(self.device),
            torch.cat((self.table, self.table[:1] * 0)),
            pad(last, (0, 1)).int().to(self.device),
            torch.tensor([*ends, 0]).int().to(self.device),
        )
        given = pad(x, (0, 0, 0, PADDING), value=torch.nan)
        found = decoder(given, prompts, self.caches[0])[: len(spans)]
        assert torch.equal(given[: len(x)], x), "the caller's input was overwritten"
        return found

    @torch.inference_mode()
    def plain(self, spans: list[Span], x: Tensor) -> Tensor:
        states = []
        for row, (span, own) in enumerate(zip(spans, x.split([span.count for span in spans]), strict=True)):
            prompt = PromptRow(row, span.start, span.count, 0, 0, span.block, (), None)
            positions, slots = self.slots(row, span)
            attention = prompt_attention(self.caches[1], [prompt], slots, self.table)
            states.append(self.text(own[None], positions, attention)[0, -1])
        return torch.stack(states)


def stored(cache: PagedCache) -> Tensor:
    """Return what was written behind the scratch page, and -1 elsewhere."""
    return torch.stack((cache.keys[:, 1:].double(), cache.values[:, 1:].double())).nan_to_num(-1.0)


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_on_one_axis_equal_the_plain_decoder(name: str, kv_dtype: torch.dtype) -> None:
    case = Case(random_text(CONFIGS[name]).double(), kv_dtype)
    decoder = fused_prefill(case.text)
    for spans in (PROMPTS, LATER):
        x = case.input(spans)
        torch.testing.assert_close(case.fused(decoder, spans, x), case.plain(spans, x), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-9, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
def test_on_a_card_rounding_costs_no_more_than_in_the_plain_decoder() -> None:
    exact = random_text(WIDE).bfloat16().float().cuda()
    fused, truth = Case(copy.deepcopy(exact).bfloat16(), torch.bfloat16), Case(exact, torch.float32)
    decoder = fused_prefill(fused.text)
    for spans in (PROMPTS, LATER):
        x = fused.input(spans)
        wanted = truth.plain(spans, x.float())
        error = distance(fused.fused(decoder, spans, x), wanted)
        assert error < 1.2 * distance(fused.plain(spans, x), wanted) + 1e-3

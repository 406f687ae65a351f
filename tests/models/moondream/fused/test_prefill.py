import copy

import pytest
import torch
from torch import Tensor

from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import PackedPrompts
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.models.moondream.model import MoondreamModel
from photonlite.runner.buffers import PagedCache
from photonlite.runner.prefill import PromptRow, prompt_attention
from tests.kernels.prompts import Span, tiled
from tests.tiny import CPU, tiny_config, tiny_model

PAGE, PAGES = 4, 30
SPANS = [Span(0, 31, 26), Span(0, 9), Span(0, 26, 26), Span(0, 1)]
LATER = [Span(31, 4), Span(9, 20), Span(26, 1), Span(1, 2)]


class Case:
    """Random inputs of some rows, with a separate cache for each way to run them."""

    def __init__(self, model: MoondreamModel, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        shape = model.shape
        scales = [(0.5, 0.25)] * shape.layers if kv_dtype == FP8 else []
        self.caches = [PagedCache(shape, 1 + 4 * PAGES, PAGE, device, kv_dtype, scales) for _ in range(2)]
        for cache in self.caches:
            for kept in (cache.keys, cache.values):
                kept.copy_(torch.full((), torch.nan).to(kv_dtype).expand(kept.shape))
        order = torch.randperm(4 * PAGES, generator=torch.Generator().manual_seed(0)) + 1
        self.table = order.view(4, PAGES).int().to(device)

    def inputs(self, spans: list[Span], seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        rows = [torch.randn(span.count, self.model.shape.dim, generator=generator) for span in spans]
        return [row.to(self.table.device, self.dtype) for row in rows]

    def slots(self, row: int, span: Span) -> tuple[Tensor, Tensor]:
        positions = torch.arange(span.start, span.start + span.count, device=self.table.device)
        return positions, self.table[row, positions // PAGE] * PAGE + positions % PAGE

    def prompts(self, spans: list[Span], padding: int) -> PackedPrompts:
        """Pack the spans on one axis, with an unused row."""
        device = self.table.device
        places = [self.slots(row, span) for row, span in enumerate(spans)]
        positions, slots = (
            torch.cat((*column, torch.zeros(padding).to(device))) for column in zip(*places, strict=True)
        )
        last = torch.tensor([span.count for span in spans]).cumsum(0) - 1
        lengths = torch.tensor([span.start + span.count for span in spans] + [0])
        return PackedPrompts(
            positions.int(),
            slots.int(),
            tiled(spans, 64, empty=2).to(device),
            torch.cat((self.table, self.table[:1])),
            torch.cat((last, torch.zeros(1))).int().to(device),
            lengths.int().to(device),
        )

    def packed(self, spans: list[Span], rows: list[Tensor], decoder: FusedPrefill) -> Tensor:
        padding = torch.full((3, rows[0].shape[1]), torch.nan).to(rows[0])
        return decoder(torch.cat((*rows, padding)), self.prompts(spans, 3), self.caches[0])[: len(spans)]

    def plain(self, spans: list[Span], rows: list[Tensor]) -> Tensor:
        states = []
        for row, (span, x) in enumerate(zip(spans, rows, strict=True)):
            positions, slots = self.slots(row, span)
            prompt = PromptRow(row, span.start, span.count, first=0, leading=0, block=span.block, images=(), turns=None)
            attention = prompt_attention(self.caches[1], [prompt], slots, self.table)
            states.append(self.model.forward(x[None], positions[None], attention)[0, -1])
        return torch.stack(states)


def stored(cache: PagedCache) -> Tensor:
    """Return what was written behind the scratch page, and -1 elsewhere."""
    both = torch.stack((cache.keys[:, 1:].double(), cache.values[:, 1:].double()))
    return both.nan_to_num(-1.0)


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8])
@pytest.mark.parametrize(
    "config",
    [
        tiny_config(),
        tiny_config("moondream2", text={"n_heads": 6, "n_kv_heads": 3}),
        tiny_config(text={"n_layers": 1}),
        tiny_config(text={"n_layers": 4}),
    ],
    ids=["one-shared-kv-head", "3-of-6-kv-heads", "one-layer", "four-layers"],
)
def test_rows_on_one_axis_equal_the_plain_model(config: MoondreamConfig, kv_dtype: torch.dtype) -> None:
    model = tiny_model(config).double()
    case = Case(model, CPU, torch.float64, kv_dtype)
    decoder = FusedPrefill(config.text, model.packed_blocks)

    for spans, seed in ((SPANS, 0), (LATER, 1)):
        rows = case.inputs(spans, seed)
        torch.testing.assert_close(case.packed(spans, rows, decoder), case.plain(spans, rows), atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-10, rtol=1e-10)


def test_a_packed_model_computes_the_same_in_shared_memory() -> None:
    model = tiny_model(tiny_config())
    wanted = {name: parameter.clone() for name, parameter in model.named_parameters()}

    blocks = model.packed_blocks

    assert model.packed_blocks is blocks
    assert {name: parameter.shape for name, parameter in model.named_parameters()} == {
        name: parameter.shape for name, parameter in wanted.items()
    }
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, wanted[name])
    assert model.text.blocks[0].mlp.fc1.weight.untyped_storage().data_ptr() == blocks[0].w_in.data_ptr()


def test_8_bit_products_change_states_a_little() -> None:
    config = tiny_config(text={"dim": 96, "ff_dim": 128}, vision={"proj_out_dim": 96}, region={"dim": 96})
    model = tiny_model(config)
    case = Case(model, CPU, torch.float32, torch.float32)
    rows = case.inputs(SPANS, 0)
    wanted = case.plain(SPANS, rows)

    found = case.packed(SPANS, rows, FusedPrefill(config.text, model.packed_blocks, fp8=True))

    assert 1e-4 < distance(found, wanted) < 0.08


def test_packed_prompts_need_a_card_or_fp8() -> None:
    model = tiny_model(tiny_config())
    assert model.prompt_decoder() is None
    assert isinstance(model.prompt_decoder(fp8=True), FusedPrefill)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float().cpu() - wanted).norm() / wanted.norm())


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("fp8", [False, True], ids=["wide", "fp8-products"])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8], ids=["wide-kv", "fp8-kv"])
def test_a_cuda_graph_is_as_close_to_the_reference_as_its_dtype_allows(kv_dtype: torch.dtype, fp8: bool) -> None:
    if (fp8 or kv_dtype == FP8) and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the card has no FP8")
    text = {"dim": 256, "ff_dim": 512, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2}
    config = tiny_config(text=text, vision={"proj_out_dim": 256}, region={"dim": 256})
    model = tiny_model(config).to(torch.bfloat16)
    truth = Case(copy.deepcopy(model).float(), CPU, torch.float32, torch.float32)
    case = Case(model.to("cuda"), torch.device("cuda", 0), torch.bfloat16, kv_dtype)
    rows = case.inputs(SPANS, 0)
    wanted = truth.plain(SPANS, [row.float().cpu() for row in rows])
    plain = distance(case.plain(SPANS, rows), wanted)
    decoder = FusedPrefill(config.text, model.packed_blocks, fp8=fp8)
    x, prompts = torch.cat(rows), case.prompts(SPANS, 0)

    with torch.inference_mode():
        eager = decoder(x, prompts, case.caches[0])[: len(SPANS)].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = decoder(x, prompts, case.caches[0])
        graph.replay()

    assert torch.equal(replayed[: len(SPANS)], eager)
    assert distance(eager, wanted) < 1.5 * plain + (0.08 if fp8 else 0.0)

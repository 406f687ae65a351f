"""Prompts whose rows have adapters: fused ones against the model that adds terms in operations of PyTorch."""

import copy

import pytest
import torch
from torch import Tensor

from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, AdapterWeights
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.prefill import FusedPrefill
from tests.kernels.prompts import Span
from tests.models.moondream.fused.test_adapted_decode import LAYERS, bank_of
from tests.models.moondream.fused.test_prefill import LATER, SPANS, Case, distance, stored
from tests.tiny import CPU, tiny_config, tiny_model

PADDING = 3
SLOTS = [1, 0, 3, 2]


def rows_of(spans: list[Span], slots: list[int], device: torch.device, padding: int = 0) -> AdapterRows:
    counts = [span.count for span in spans]
    return AdapterRows.of([*slots, 0], [*counts, padding], device)


def index_of(spans: list[Span], slots: list[int], device: torch.device, padding: int = PADDING) -> AdapterRows:
    """Return the index alone, as graphs have it: with a stride, and with the padding behind the rows."""
    index = rows_of(spans, slots, device, padding).index
    places = torch.stack((torch.full_like(index, 9), index), dim=1)
    return AdapterRows(len(index), None, places[:, 1])


def plain(case: Case, bank: AdapterBank, spans: list[Span], slots: list[int], rows: list[Tensor]) -> Tensor:
    """Run rows one by one in the bank's model."""
    states = []
    for row, (span, slot) in enumerate(zip(spans, slots, strict=True)):
        with bank.running(rows_of([span], [slot], case.table.device)) as model:
            one = copy.copy(case)
            one.model, one.table = model, case.table[row:]
            states.append(one.plain([span], [rows[row]]))
    return torch.cat(states)


def split_weights(config: MoondreamConfig) -> AdapterWeights:
    """Draw an adapter of queries alone and of values alone, as PEFT makes them."""
    text, draw = config.text, torch.Generator().manual_seed(9)
    width, each = text.n_heads * text.head_dim, text.kv_heads * text.head_dim
    terms = []
    for block in range(text.n_layers):
        for first, stop in ((0, width), (width + each, width + 2 * each)):
            a, b = (torch.randn(*size, generator=draw).double() for size in ((3, text.dim), (stop - first, 3)))
            terms.append(AdapterTerm(AdapterPlace(f"text.blocks.{block}.attn.qkv", first, stop), a * 0.2, b * 0.2))
    return AdapterWeights("split", tuple(terms))


@pytest.mark.parametrize("layers", [LAYERS, LAYERS[:1], LAYERS[1:2], LAYERS[2:3], LAYERS[4:], "split"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_prompts_equal_those_of_the_plain_model_with_adapters(layers: tuple[str, ...] | str, blocks: int) -> None:
    config = tiny_config("moondream2", text={"n_heads": 6, "n_kv_heads": 3, "n_layers": blocks})
    model = tiny_model(config).double()
    if isinstance(layers, tuple):
        bank = bank_of(model, layers=layers)
    else:
        bank = AdapterBank(model, 3, 4)
        for slot in (1, 2, 3):
            bank.write(slot, split_weights(config))
    case = Case(model, CPU, torch.float64, torch.float64)
    without = FusedPrefill(config.text, model.packed_blocks)
    decoder = without.adapted(bank)

    for spans, seed in ((SPANS, 0), (LATER, 1)):
        rows = case.inputs(spans, seed)
        wanted = plain(case, bank, spans, SLOTS, rows)
        bare = case.packed(spans, rows, without)
        with bank.running(index_of(spans, SLOTS, CPU)):
            found = case.packed(spans, rows, decoder)
        torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-10, rtol=1e-10)
        assert ((found - bare).abs().amax(dim=1) > 1e-3).tolist() == [slot > 0 for slot in SLOTS]


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("long", [False, True])
def test_a_graph_reads_the_slots_of_each_replay(long: bool) -> None:
    text = {"dim": 256, "ff_dim": 512, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2}
    config = tiny_config(text=text, vision={"proj_out_dim": 256}, region={"dim": 256})
    model = tiny_model(config).to(torch.bfloat16)
    exact = copy.deepcopy(model).float()
    truth = Case(exact, CPU, torch.float32, torch.float32)
    case = Case(model.to("cuda"), torch.device("cuda", 0), torch.bfloat16, torch.bfloat16)
    banks = [bank_of(one, slots=3, rank=16) for one in (model, exact)]
    spans = [*SPANS[:2], Span(0, 110, 26), Span(0, 90)] if long else SPANS  # over and under the tiles of few rows
    rows = case.inputs(spans, 0)
    decoder = FusedPrefill(config.text, model.packed_blocks).adapted(banks[0])
    x, prompts = torch.cat((*rows, rows[0][:PADDING])), case.prompts(spans, PADDING)
    index = index_of(spans, [0] * 4, x.device).index

    with torch.inference_mode(), banks[0].running(AdapterRows(len(x), None, index)):
        decoder(x, prompts, case.caches[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = decoder(x, prompts, case.caches[0])

    for slots in (SLOTS, [0, 0, 0, 0], [2, 2, 1, 1]):
        index.copy_(index_of(spans, slots, x.device).index)
        graph.replay()
        wanted = plain(truth, banks[1], spans, slots, [row.float().cpu() for row in rows])
        rounding = distance(plain(case, banks[0], spans, slots, rows), wanted)
        assert distance(out[: len(spans)], wanted) < 1.5 * rounding, slots
        if any(slots):
            assert distance(plain(truth, banks[1], spans, [0] * 4, [row.float().cpu() for row in rows]), wanted) > 0.1

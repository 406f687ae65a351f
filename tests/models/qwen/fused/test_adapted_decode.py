"""Decode steps whose rows have adapters: fused ones against the decoder that adds terms in operations of PyTorch."""

import pytest
import torch
from torch import nn

from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, AdapterWeights
from photonlite.models.qwen.text import TextDecoder
from tests.models.qwen.fused.steps import CONFIGS, Context, embeddings, fused_decode, random_decoder
from tests.models.qwen.fused.test_decode import EXCESS, distance, lengths_of, rounded


class Whole(nn.Module):
    """A model as the bank names its layers."""

    def __init__(self, text: TextDecoder) -> None:
        super().__init__()
        self.text = text


def bank_of(text: TextDecoder, slots: int, rank: int) -> AdapterBank:
    """Return a bank with random adapters of q, v, gate, up and both output layers; that of up is in slot 1 alone."""
    bank, config, draw = AdapterBank(Whole(text), slots, rank), text.config, torch.Generator().manual_seed(1)
    heads, width = config.heads * config.head_dim, (config.heads + 2 * config.kv_heads) * config.head_dim
    places = {
        "attn.qkv": ((0, heads), (width - config.kv_heads * config.head_dim, width)),
        "attn.proj": ((0, config.dim),),
        "mlp.gate_up": ((config.ff_dim, 2 * config.ff_dim), (0, config.ff_dim)),
        "mlp.down": ((0, config.dim),),
    }
    for slot in range(1, slots + 1):
        terms = []
        for block in range(config.layers):
            for layer, parts in places.items():
                name = f"text.blocks.{block}.{layer}"
                ins = text.blocks[block].get_submodule(layer).in_features
                for first, stop in parts[: 1 if slot > 1 else 2]:
                    a = torch.randn(rank, ins, generator=draw) * ins**-0.5
                    b = torch.randn(stop - first, rank, generator=draw) * (0.1 / rank) ** 0.5
                    dtype = text.words.dtype
                    place = AdapterPlace(name, first, stop)
                    terms.append(AdapterTerm(place, a.bfloat16().to(dtype), b.bfloat16().to(dtype)))
        bank.write(slot, AdapterWeights(f"{slot}", tuple(terms)))
    return bank


@pytest.mark.parametrize("slots", [[1, 0, 3, 2, 3], [1]])
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_those_of_the_plain_decoder_with_adapters(name: str, slots: list[int]) -> None:
    text = random_decoder(*CONFIGS[name]).double()
    bare = fused_decode(text)
    bank = bank_of(text, 3, 4)
    decoder = bare.adapted(bank)
    lengths = [31, 0, 63, 64, 7][: len(slots)]
    fused, without, plain = Context(text, lengths), Context(text, lengths), Context(bank.model.text, lengths)
    with bank.running(AdapterRows.of(slots, [1] * len(slots), plain.device)):
        for step in range(3):
            x = embeddings(len(slots), text.config.dim, step).double()
            found = fused.fused(decoder, x)
            torch.testing.assert_close(found, plain.plain(x), rtol=1e-10, atol=1e-10)
            changed = (found - without.fused(bare, x)).abs().amax(dim=1) > 1e-3
            assert changed.tolist() == [slot > 0 for slot in slots]
            for context in (fused, plain, without):
                context.advance()


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("name", ["qwen3-vl-2b", "qwen2.5-vl-3b", "tiny"])
def test_rounding_costs_no_more_than_in_the_plain_decoder(name: str) -> None:
    text, exact = rounded(name)
    bank, exact_bank = bank_of(text, 4, 16), bank_of(exact, 4, 16)
    decoder = fused_decode(text).adapted(bank)
    total = [0.0, 0.0]
    for rows in (1, 2, 8, 33, MAX_ROWS):
        lengths, errors = lengths_of(rows, 850), [0.0, 0.0]
        given = AdapterRows.of([(row + 1) % 5 for row in range(rows)], [1] * rows, torch.device("cuda"))
        with bank.running(given), exact_bank.running(given):
            for seed in range(3):
                x = embeddings(rows, text.config.dim, seed)
                wanted = Context(exact_bank.model.text, lengths).plain(x)
                errors[0] += distance(Context(text, lengths).fused(decoder, x), wanted)
                errors[1] += distance(Context(bank.model.text, lengths).plain(x), wanted)
                assert distance(Context(exact, lengths).plain(x), wanted) > 0.1, "the adapters change something"
        assert errors[0] < 1.5 * errors[1], f"{rows} rows: {errors}"
        total = [total[0] + errors[0], total[1] + errors[1]]
    assert total[0] < EXCESS * total[1], total


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [1, 8, MAX_ROWS])
@pytest.mark.parametrize("name", ["qwen3-vl-2b", "tiny"])
def test_a_graph_reads_the_slots_of_each_replay(name: str, rows: int) -> None:
    text, _ = rounded(name)
    bank = bank_of(text, 4, 16)
    decoder = fused_decode(text).adapted(bank)
    context, plain = Context(text, lengths_of(rows, 850)), Context(bank.model.text, lengths_of(rows, 850))
    index = torch.zeros(rows, dtype=torch.int32, device="cuda")
    x = embeddings(rows, text.config.dim).cuda().bfloat16()
    with bank.running(AdapterRows(rows, None, index)):
        context.fused(decoder, x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = context.fused(decoder, x)
    for slots in ([1] * rows, [row % 5 for row in range(rows)], [0] * rows):
        given = AdapterRows.of(slots, [1] * rows, index.device)
        index.copy_(given.index)
        graph.replay()
        first = out.clone()
        with bank.running(given):
            assert distance(first, plain.plain(x)) < 0.05
        for _ in range(30):
            graph.replay()
        assert torch.equal(out, first)

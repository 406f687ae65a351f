"""Decode steps whose rows have adapters: fused ones against the model that adds terms in operations of PyTorch."""

import pytest
import torch
from torch import Tensor

from photonlite.config import Precision
from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, AdapterWeights
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.quantised import QuantisedLinear
from tests.models.moondream.fused.test_decode import (
    EXCESS,
    SHAPES,
    Context,
    config_of,
    decoder_of,
    distance,
    embeddings,
    lengths_of,
    replayed,
    rounded,
)
from tests.tiny import tiny_config, tiny_model

LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "attn")
"""The last one stands for the whole attention, as in Moondream's own variants."""


def weights(model: MoondreamModel, seed: int, rank: int, layers: tuple[str, ...] = LAYERS) -> AdapterWeights:
    """Draw an adapter of some layers of all blocks; its terms are about as large as the layers' own outputs."""
    text, draw = model.config.text, torch.Generator().manual_seed(seed)
    qkv = (text.n_heads + 2 * text.kv_heads) * text.head_dim
    sizes = {
        "attn.qkv": (text.dim, qkv),
        "attn.proj": (text.dim, text.dim),
        "mlp.fc1": (text.dim, text.ff_dim),
        "mlp.fc2": (text.ff_dim, text.dim),
        "attn": (text.dim, text.dim),
    }
    dtype, terms = model.text.wte.dtype, []
    for block in range(text.n_layers):
        for layer in layers:
            ins, outs = sizes[layer]
            a = torch.randn(rank, ins, generator=draw) * ins**-0.5
            b = torch.randn(outs, rank, generator=draw) * (0.1 / rank) ** 0.5
            place = AdapterPlace(f"text.blocks.{block}.{layer}", 0, outs)
            terms.append(AdapterTerm(place, a.bfloat16().to(dtype), b.bfloat16().to(dtype)))
    return AdapterWeights(f"{seed}", tuple(terms))


def bank_of(model: MoondreamModel, slots: int = 3, rank: int = 4, layers: tuple[str, ...] = LAYERS) -> AdapterBank:
    """Return a bank whose last slot has half of the rank."""
    bank = AdapterBank(model, slots, rank)
    for slot in range(1, slots + 1):
        bank.write(slot, weights(model, slot, rank // 2 if slot == slots else rank, layers))
    return bank


def quantised(model: MoondreamModel, precision: Precision) -> MoondreamModel:
    """Quantise the linear layers of a model's blocks in place."""
    for block in model.text.blocks:
        for owner, name in ((block.attn, "qkv"), (block.attn, "proj"), (block.mlp, "fc1"), (block.mlp, "fc2")):
            setattr(owner, name, QuantisedLinear.of(getattr(owner, name), precision))
    return model


def rows_of(slots: list[int], device: torch.device) -> AdapterRows:
    return AdapterRows.of(slots, [1] * len(slots), device)


@pytest.mark.parametrize("layers", [LAYERS, LAYERS[:1], LAYERS[3:4], LAYERS[4:]])
@pytest.mark.parametrize("slots", [[1, 0, 3, 2, 3], [2], [0, 0]])
def test_steps_equal_those_of_the_plain_model_with_adapters(slots: list[int], layers: tuple[str, ...]) -> None:
    model = tiny_model(tiny_config()).double()
    plain_decoder = decoder_of(model)
    bank = bank_of(model, layers=layers)
    decoder = plain_decoder.adapted(bank)
    lengths = [31, 0, 63, 64, 7][: len(slots)]
    fused, without = (Context(model, lengths) for _ in range(2))
    plain = Context(bank.model, lengths)

    with bank.running(rows_of(slots, plain.device)):
        for step in range(3):
            x = embeddings(len(slots), 24, step).double()
            found = fused.fused(decoder, x)
            torch.testing.assert_close(found, plain.plain(x), rtol=1e-10, atol=1e-10)
            changed = (found - without.fused(plain_decoder, x)).abs().amax(dim=1) > 1e-3
            assert changed.tolist() == [slot > 0 for slot in slots]
            for context in (fused, plain, without):
                context.advance()


def test_quantised_weights_take_adapters() -> None:
    model = quantised(tiny_model(config_of(128, 256, 2, 2, 2, 1024)).float(), "int8")
    decoder, bank = decoder_of(model), bank_of(model)
    with bank.running(rows_of([3, 0, 1], torch.device("cpu"))):
        x = embeddings(3, 128)
        found, wanted = (
            Context(model, [3, 5, 9]).fused(decoder.adapted(bank), x),
            Context(bank.model, [3, 5, 9]).plain(x),
        )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_decoder_reads_what_slots_hold_now() -> None:
    model = tiny_model(tiny_config()).double()
    bank = bank_of(model)
    decoder = decoder_of(model).adapted(bank)
    x = embeddings(2, 24).double()
    with bank.running(rows_of([1, 2], x.device)):
        before = Context(model, [3, 5]).fused(decoder, x)
        bank.write(2, weights(model, 9, 3))
        found = Context(model, [3, 5]).fused(decoder, x)
        torch.testing.assert_close(found, Context(bank.model, [3, 5]).plain(x), rtol=1e-10, atol=1e-10)
    assert torch.equal(found[0], before[0])
    assert not torch.allclose(found[1], before[1])


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
BATCHES = (1, 2, 8, 33, MAX_ROWS)


def mixed(rows: int, slots: int) -> list[int]:
    """Return slots of rows: the last one, none, and others."""
    return [slots if not row else row * 5 % (slots + 1) for row in range(rows)]


def banks(name: str, rank: int, slots: int, dtype: torch.dtype = torch.bfloat16) -> tuple[AdapterBank, AdapterBank]:
    """Return banks of a model in half precision and of the same in float32, with equal adapters."""
    half, exact = (bank_of(model, slots, rank) for model in rounded(name, dtype))
    return half, exact


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(
    ("name", "rank", "slots", "dtype"),
    [
        ("moondream2", 16, 8, torch.bfloat16),
        ("moondream2", 64, 2, torch.bfloat16),
        ("dim-224", 4, 3, torch.float16),
        ("odd", 6, 5, torch.bfloat16),
        ("tiny", 16, 3, torch.bfloat16),
    ],
)
def test_rounding_costs_no_more_than_in_the_plain_model(name: str, rank: int, slots: int, dtype: torch.dtype) -> None:
    model, exact = rounded(name, dtype)
    bank, exact_bank = banks(name, rank, slots, dtype)
    decoder = decoder_of(model).adapted(bank)
    total = [0.0, 0.0]
    for rows in BATCHES:
        lengths, errors = lengths_of(rows, 850), [0.0, 0.0]
        given = rows_of(mixed(rows, slots), torch.device("cuda"))
        with bank.running(given), exact_bank.running(given):
            for seed in range(3):
                x = embeddings(rows, model.shape.dim, seed)
                wanted = Context(exact_bank.model, lengths).plain(x)
                errors[0] += distance(Context(model, lengths).fused(decoder, x), wanted)
                errors[1] += distance(Context(bank.model, lengths).plain(x), wanted)
                assert distance(Context(exact, lengths).plain(x), wanted) > 0.1, "the adapters change something"
        assert errors[0] < 1.5 * errors[1], f"{rows} rows: {errors}"
        total = [total[0] + errors[0], total[1] + errors[1]]
    assert total[0] < EXCESS * total[1], total


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [1, 8, MAX_ROWS])
@pytest.mark.parametrize("name", ["moondream2", "tiny"])
def test_a_graph_reads_the_slots_and_matrices_of_each_replay(name: str, rows: int) -> None:
    model, _ = rounded(name)
    bank, _ = banks(name, 16, 4)
    decoder = decoder_of(model).adapted(bank)
    context, plain = Context(model, lengths_of(rows, 850)), Context(bank.model, lengths_of(rows, 850))
    index = torch.zeros(rows, dtype=torch.int32, device="cuda")
    x = embeddings(rows, model.shape.dim).cuda().bfloat16()
    with bank.running(AdapterRows(rows, None, index)):
        replay, out = replayed(lambda: context.fused(decoder, x))

    def check(slots: list[int]) -> Tensor:
        given = rows_of(slots, index.device)
        index.copy_(given.index)
        replay()
        first = out.clone()
        with bank.running(given):
            wanted = plain.plain(x)
        assert distance(first, wanted) < 0.05
        for _ in range(30):  # programs that start too early would read what another step has left
            replay()
        assert torch.equal(out, first)
        return first

    first = check([1] * rows)
    second = check(mixed(rows, 4))
    bank.write(1, weights(model, 17, 16))
    torch.cuda.synchronize()
    assert distance(check([1] * rows), first) > 0.05
    bare = check([0] * rows)
    assert distance(second, bare) > 0.05
    assert distance(bare, context.fused(decoder_of(model), x)) < 0.02


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 8, MAX_ROWS])
def test_quantised_weights_on_a_card_take_adapters(precision: Precision, rows: int) -> None:
    model = quantised(tiny_model(SHAPES["moondream2"]).bfloat16().cuda(), precision)
    bank = bank_of(model, 3, 16)
    decoder = decoder_of(model).adapted(bank)
    lengths, x = lengths_of(rows, 300), embeddings(rows, model.shape.dim)
    with bank.running(rows_of(mixed(rows, 3), torch.device("cuda"))):
        wanted = Context(bank.model, lengths).plain(x)
        assert distance(Context(model, lengths).fused(decoder, x), wanted) < 0.03
    assert distance(Context(model, lengths).plain(x), wanted) > 0.05

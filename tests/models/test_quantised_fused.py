"""Fused decoders with quantised weights, against the plain layers that hold them."""

import copy

import pytest
import torch

from photonlite.config import Precision
from photonlite.kernels import cards
from photonlite.kernels.reference.quantised import QuantisedWeight
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import QuantisedLinear, quantise_layers
from photonlite.models.qwen.text import TextDecoder
from tests.models.moondream.fused import test_prefill as prompts
from tests.models.moondream.fused.test_decode import Context, embeddings
from tests.models.qwen.fused import steps as qwen
from tests.models.qwen.fused import test_prefill as qwen_prompts
from tests.tiny import tiny_config, tiny_model

PRECISIONS: tuple[Precision, ...] = ("int8", "fp8", "int4")
F64 = torch.float64
LARGE = {"dim": 128, "ff_dim": 256, "n_heads": 4, "n_kv_heads": 2}


def moondream(precision: Precision, **text: int) -> MoondreamModel:
    sections = {"vision": {"proj_out_dim": 128}, "region": {"dim": 128}}
    model = tiny_model(tiny_config(text=LARGE | text, **sections)).double()
    quantise_layers(model, Precisions(precision))
    return model


def qwen_decoder(precision: Precision) -> TextDecoder:
    config = qwen.text_config(dim=128, ff_dim=256, heads=8)
    text = qwen.random_decoder("qwen3_vl", config).double()
    holder = torch.nn.ModuleDict({"text": text})
    quantise_layers(holder, Precisions(precision))
    return text


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_parallel_decoder_computes_the_same_fused(precision: Precision) -> None:
    model = moondream(precision)
    plain_model = copy.deepcopy(model)
    decoder = FusedDecode(model.config.text, model.packed_blocks)
    assert isinstance(model.packed_blocks[0].w_out, QuantisedWeight)
    for rows in ([31, 0, 7], [12]):
        fused, plain, shared = Context(model, rows), Context(plain_model, rows), Context(model, rows)
        x = embeddings(len(rows), 128).double()
        wanted = plain.plain(x)
        torch.testing.assert_close(fused.fused(decoder, x), wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(shared.plain(x), wanted, rtol=1e-10, atol=1e-10)  # layers are views of joined ones

    case, spans = prompts.Case(model, torch.device("cpu"), F64, F64), prompts.SPANS
    inputs = case.inputs(spans, 0)
    with torch.inference_mode():
        packed = case.packed(spans, inputs, FusedPrefill(model.config.text, model.packed_blocks))
        torch.testing.assert_close(packed, case.plain(spans, inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_serial_decoder_computes_the_same_fused(precision: Precision) -> None:
    text = qwen_decoder(precision)
    decoder = qwen.fused_decode(text)
    fused, plain = (qwen.Context(text, [31, 0, 7], page=4) for _ in range(2))
    x = qwen.embeddings(3, 128).double()
    torch.testing.assert_close(fused.fused(decoder, x), plain.plain(x), rtol=1e-10, atol=1e-10)
    assert decoder._blocks[0].w_down.group == (256 if precision != "int4" else 128)  # type: ignore[union-attr]
    qwen_prompts.fused_prefill(text)


def test_what_kernels_do_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(model: MoondreamModel, capability: tuple[int, int] = (9, 0)) -> str | None:
        card = cards.Card("a card", capability, 2**20)
        monkeypatch.setattr(cards, "card_of", lambda device: card)
        return model.plain_parts().get("decode steps")

    def half(precision: Precision, **text: int) -> MoondreamModel:
        model = moondream(precision, **text)
        model.text.wte.data = model.text.wte.data.bfloat16()
        return model

    monkeypatch.setattr(cards, "HAS_TRITON", True)
    assert reason(half("int8")) is None
    assert reason(half("fp8")) is None
    assert "compute capability 8.9" in str(reason(half("fp8"), (8, 0)))
    assert "multiple of 128 numbers" in str(reason(half("int4", ff_dim=272)))
    mixed = half("int4")
    block = mixed.text.blocks[0]
    block.mlp.fc2 = torch.nn.Linear(256, 128)
    assert reason(mixed) == "only some layers of a block are quantised"
    block.mlp.fc2 = QuantisedLinear.of(torch.nn.Linear(256, 128), "int8")
    assert reason(mixed) == "layers of a block are quantised in several ways"
    assert half("int8").heads is not None

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.errors import SettingsError
from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.reference.experts import quantise_experts
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.mixture_decode import MixtureDecode
from photonlite.models.moondream.fused.mixture_prefill import MixturePrefill
from photonlite.models.moondream.model import MoondreamModel
from tests.models.moondream.fused.test_decode import Context, distance, embeddings, lengths_of, replayed
from tests.models.moondream.fused.test_prefill import LATER, SPANS, Case, stored
from tests.tiny import CPU, EXPERTS, tiny_config, tiny_model

CONFIGS = {
    "dense-then-experts": tiny_config("moondream3", text=EXPERTS | {"n_layers": 4, "tau_gelu": "tanh"}),
    "experts-alone": tiny_config("moondream3", text=EXPERTS | {"moe": EXPERTS["moe"] | {"start_layer": 0}}),
    "no-temperatures": tiny_config(
        "moondream3", text=EXPERTS | {"tau": False, "n_kv_heads": 1, "tau_positions": "float32"}
    ),
    "no-experts": tiny_config("moondream3", text=EXPERTS | {"moe": None}),
}


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize("lengths", [[31, 0, 63, 64, 7], [17]], ids=["five-rows", "one-row"])
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_those_of_the_plain_model(name: str, lengths: list[int], kv_dtype: torch.dtype) -> None:
    model = tiny_model(CONFIGS[name]).double()
    decoder = MixtureDecode(model.config.text, model.packed_blocks)
    fused, plain = (Context(model, lengths, page=4, kv_dtype=kv_dtype) for _ in range(2))

    for step in range(4):
        x = embeddings(len(lengths), 24, step).double()
        torch.testing.assert_close(fused.fused(decoder, x), plain.plain(x), rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]
        for one, other in ((fused.cache.keys, plain.cache.keys), (fused.cache.values, plain.cache.values)):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-9, atol=1e-9)
        fused.advance()
        plain.advance()


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_on_one_axis_equal_the_plain_model(name: str, kv_dtype: torch.dtype) -> None:
    model = tiny_model(CONFIGS[name]).double()
    case = Case(model, CPU, torch.float64, kv_dtype)
    decoder = MixturePrefill(model.config.text, model.packed_blocks)

    for spans, seed in ((SPANS, 0), (LATER, 1)):
        rows = case.inputs(spans, seed)
        found = case.packed(spans, rows, decoder)  # type: ignore[arg-type]
        torch.testing.assert_close(found, case.plain(spans, rows), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-9, rtol=1e-9)


def test_a_packed_mixture_computes_the_same_in_shared_memory() -> None:
    model = tiny_model(CONFIGS["dense-then-experts"])
    wanted = {name: parameter.clone() for name, parameter in model.named_parameters()}

    blocks = model.packed_blocks

    assert {name: parameter.shape for name, parameter in model.named_parameters()} == {
        name: parameter.shape for name, parameter in wanted.items()
    }
    assert all(torch.equal(parameter, wanted[name]) for name, parameter in model.named_parameters())
    mlp, experts = model.text.blocks[2].mlp, blocks[2].experts
    assert experts is not None
    assert experts.inward.values.data_ptr() == mlp.fc1.weight.data_ptr()
    assert mlp.router.weight.untyped_storage().data_ptr() == blocks[2].w_in.data_ptr()


def test_prompts_have_no_fp8_products() -> None:
    model = tiny_model(CONFIGS["experts-alone"])
    assert model.prompt_decoder() is None
    assert model.step_decoder() is None
    with pytest.raises(SettingsError, match="'fp8_linears' is on, but the decoder of this model has"):
        model.prompt_decoder(fp8=True)


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
BATCHES = (1, 2, 8, 32, 64)


def config_of(dim: int, heads: int, layers: int, **moe: Any) -> MoondreamConfig:
    text = {"dim": dim, "ff_dim": 4 * dim, "n_heads": heads, "n_kv_heads": heads, "n_layers": layers}
    sections = {"vision": {"proj_out_dim": dim}, "region": {"dim": dim}}
    return tiny_config("moondream3", text={**text, "max_context": 1024, "moe": moe}, **sections)


SHAPES = {
    "moondream3": config_of(2048, 32, 3, start_layer=1),
    "small": config_of(128, 2, 3, start_layer=1, num_experts=12, experts_per_token=3, expert_inner_dim=72),
}


@functools.cache
def rounded(name: str, fp8: bool) -> tuple[MoondreamModel, MoondreamModel]:
    """A model in bfloat16, its experts in FP8 or not, and one with the same numbers in float32, both on the card."""
    model = tiny_model(SHAPES[name]).cuda().to(torch.bfloat16)
    if fp8:
        quantise(model)
    exact = copy.deepcopy(model).float()
    return model, exact


def quantise(model: MoondreamModel) -> None:
    """Replace the experts of a model by e4m3 numbers with scales."""
    for block in model.text.blocks:
        for part in ("fc1", "fc2"):
            layer = getattr(block.mlp, part)
            if layer.weight.ndim == 3:
                found = quantise_experts(layer.weight)
                layer.weight = torch.nn.Parameter(found.values, requires_grad=False)
                layer.scale = torch.nn.Parameter(found.scale, requires_grad=False)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("fp8", [False, True], ids=["wide", "fp8-experts"])
@pytest.mark.parametrize("name", SHAPES)
def test_rounding_costs_no_more_than_in_the_plain_model(name: str, fp8: bool) -> None:
    if fp8 and not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    model, exact = rounded(name, fp8)
    decoder = model.step_decoder()
    assert isinstance(decoder, MixtureDecode)
    total = [0.0, 0.0]
    for rows in (*BATCHES, MAX_ROWS + 6):
        lengths = lengths_of(rows, 850)
        fused, plain, truth = (Context(one, lengths) for one in (model, model, exact))
        for step in range(3):
            x = embeddings(rows, model.shape.dim, step)
            wanted = truth.plain(x)
            # Near ties of the router go either way in bfloat16: a row that goes another way is a tenth of the total.
            total[0] += distance(fused.fused(decoder, x), wanted)  # type: ignore[arg-type]
            total[1] += distance(plain.plain(x), wanted)
            for context in (fused, plain, truth):
                context.advance()
    assert total[0] < 1.5 * total[1], total


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_a_graph_gives_the_same_bits_again_and_again_after_any_other_step(name: str, rows: int) -> None:
    model, _ = rounded(name, False)
    decoder = model.step_decoder()
    context = Context(model, lengths_of(rows, 850))
    inputs = [embeddings(rows, model.shape.dim, seed).cuda().bfloat16() for seed in range(3)]
    x = inputs[0].clone()
    replay, out = replayed(lambda: context.fused(decoder, x))  # type: ignore[arg-type]
    first = []
    for given in inputs:
        x.copy_(given)
        torch.cuda.synchronize()
        replay()
        torch.cuda.synchronize()
        first.append(out.clone())
        assert distance(out, context.plain(given)) < 0.1

    for number in itertools.islice(itertools.cycle((0, 1, 2, 1, 0, 2)), 100):
        x.copy_(inputs[number])
        replay()
        assert torch.equal(out, first[number])


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("fp8", [False, True], ids=["wide", "fp8-experts"])
def test_a_prompt_in_a_graph_is_as_close_to_the_reference_as_its_type_allows(fp8: bool) -> None:
    if fp8 and not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    model, exact = rounded("small", fp8)
    device = torch.device("cuda", 0)
    case, truth = Case(model, device, torch.bfloat16, torch.bfloat16), Case(exact, device, torch.float32, torch.float32)
    rows = case.inputs(SPANS, 0)
    wanted = truth.plain(SPANS, [row.float() for row in rows])
    plain = error(case.plain(SPANS, rows), wanted)
    decoder = model.prompt_decoder()
    assert isinstance(decoder, MixturePrefill)
    x, prompts = torch.cat(rows), case.prompts(SPANS, 0)

    with torch.inference_mode():
        eager = decoder(x, prompts, case.caches[0])[: len(SPANS)].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = decoder(x, prompts, case.caches[0])
        graph.replay()

    assert torch.equal(again[: len(SPANS)], eager)
    assert error(eager, wanted) < 1.5 * plain


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())

import copy
import functools

import pytest
import torch
from torch import Tensor

from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.qwen.text import TextDecoder
from tests.models.qwen.fused.steps import CONFIGS, Context, embeddings, fused_decode, random_decoder, text_config


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize(("page", "delta"), [(1, 0), (4, 0), (32, 6)])
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_those_of_the_plain_decoder(name: str, page: int, delta: int, kv_dtype: torch.dtype) -> None:
    text = random_decoder(*CONFIGS[name]).double()
    decoder = fused_decode(text)
    fused, plain = (
        Context(text, [31, 0, 63, 64, 7], page=page, kv_dtype=kv_dtype, delta=delta) for _ in range(2)
    )  # fmt: skip

    for step in range(4):
        x = embeddings(5, text.config.dim, step).double()
        torch.testing.assert_close(fused.fused(decoder, x), plain.plain(x), rtol=1e-10, atol=1e-10)
        for one, other in ((fused.cache.keys, plain.cache.keys), (fused.cache.values, plain.cache.values)):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-10, atol=1e-10)
        fused.advance()
        plain.advance()


def test_weights_stay_those_of_the_plain_decoder() -> None:
    text = random_decoder(*CONFIGS["2.5"])
    fused_weights = fused_decode(text)._blocks
    memory = {parameter.untyped_storage().data_ptr() for parameter in text.parameters()}
    for block in fused_weights:
        tensors = (block.gain_in, block.w_qkv, block.b_qkv, block.w_proj, block.gain_mlp, block.w_gate_up, block.w_down)
        assert {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor is not None} <= memory


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
BATCHES = (1, 2, 8, 32, 64)
EXCESS = 1.2
"""Bound of the fused error in multiples of the unfused one: both round to bfloat16 about as often."""

_WIDE = {"head_dim": 128, "sections": (24, 20, 20), "max_context": 2048}
SHAPES = {
    "qwen3-vl-2b": ("qwen3_vl", text_config(dim=2048, ff_dim=6144, layers=4, heads=16, kv_heads=8, **_WIDE)),
    "qwen3-vl-8b": ("qwen3_vl", text_config(dim=4096, ff_dim=12288, layers=2, heads=32, kv_heads=8, **_WIDE)),
    "qwen2.5-vl-3b": (
        "qwen2_5_vl",
        text_config(dim=2048, ff_dim=11008, layers=3, heads=16, kv_heads=2, interleaved=False, **_WIDE),
    ),
    "qwen2.5-vl-7b": (
        "qwen2_5_vl",
        text_config(dim=3584, ff_dim=18944, layers=2, heads=28, kv_heads=4, interleaved=False, **_WIDE),
    ),
    # Its kernels are so small that a whole step may be queued before the first kernel runs.
    "tiny": ("qwen3_vl", text_config(max_context=1024)),
}


@functools.cache
def rounded(name: str) -> tuple[TextDecoder, TextDecoder]:
    """A decoder in bfloat16, and one with the same weights in float32, both on the card."""
    text = random_decoder(*SHAPES[name]).bfloat16()
    return text.cuda(), copy.deepcopy(text).float().cuda()


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def lengths_of(rows: int, longest: int) -> list[int]:
    return [longest - 37 * row % longest for row in range(rows)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("name", SHAPES)
def test_rounding_costs_no_more_than_in_the_plain_decoder(name: str) -> None:
    text, exact = rounded(name)
    decoder = fused_decode(text)
    total = [0.0, 0.0]
    for rows in (*BATCHES, MAX_ROWS + 6):
        lengths = lengths_of(rows, 850)
        fused, plain, truth = (Context(one, lengths) for one in (text, text, exact))
        errors = [0.0, 0.0]
        for step in range(3):
            x = embeddings(rows, text.config.dim, step)
            wanted = truth.plain(x)
            errors[0] += distance(fused.fused(decoder, x), wanted)
            errors[1] += distance(plain.plain(x), wanted)
            for context in (fused, plain, truth):
                context.advance()
        # A few rows of a small decoder are a small sample.
        assert errors[0] < 1.5 * errors[1], f"{rows} rows: {errors}"
        total = [total[0] + errors[0], total[1] + errors[1]]
    assert total[0] < EXCESS * total[1], total


@pytest.mark.gpu
@gpu
def test_an_8_bit_cache_costs_as_much_accuracy_as_in_the_unfused_decoder() -> None:
    if not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    text, exact = rounded("qwen3-vl-2b")
    decoder = fused_decode(text)
    for rows in BATCHES:
        lengths = lengths_of(rows, 850)
        fused, plain = (Context(text, lengths, kv_dtype=FP8) for _ in range(2))
        x = embeddings(rows, text.config.dim)
        wanted = Context(exact, lengths).plain(x)
        assert distance(fused.fused(decoder, x), wanted) < EXCESS * distance(plain.plain(x), wanted)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_a_graph_gives_the_same_bits_again_and_again(name: str, rows: int) -> None:
    text, _ = rounded(name)
    decoder = fused_decode(text)
    context = Context(text, lengths_of(rows, 850))
    inputs = [embeddings(rows, text.config.dim, seed).cuda().bfloat16() for seed in range(3)]
    x = inputs[0].clone()
    context.fused(decoder, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = context.fused(decoder, x)
    first = []
    for given in inputs:
        # Programs that start too early would read another step's values: the results then differ from the reference.
        x.copy_(given)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        first.append(out.clone())
        assert distance(out, context.plain(given)) < 0.05

    for number in (0, 1, 2, 1, 0, 2) * 15:
        x.copy_(inputs[number])
        graph.replay()
        assert torch.equal(out, first[number])

"""Decode steps on fused kernels: equal to the plain decoder by their references, as close as rounding on a card."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import ModelShape, NextPositions
from photonlite.models.paligemma.config import TextConfig
from photonlite.models.paligemma.fused.decode import FusedDecode
from photonlite.models.paligemma.fused.layers import block_weights, rotary_rows
from photonlite.models.paligemma.fused.text import FusedText
from photonlite.models.paligemma.text import Norm, TextDecoder
from photonlite.runner.buffers import PagedCache
from photonlite.runner.decode import decode_attention
from photonlite.runner.slots import PAGES, POSITION, WRITE_SLOT

PAGE = 16
BASE: dict[str, Any] = {
    "dim": 40, "ff_dim": 36, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 64,
    "max_context": 256, "norm_eps": 1e-6, "rope_theta": 1e4, "query_scalar": 10, "attention_cap": 2.0,
    "logit_cap": None, "window": 256, "sliding": (True, False, True),
}  # fmt: skip
CONFIGS = {
    "capped": TextConfig(**BASE),
    "free": TextConfig(**BASE | {"attention_cap": None, "heads": 3, "kv_heads": 1, "ff_dim": 33, "head_dim": 24}),
}
WIDE = TextConfig(
    **BASE
    | {"dim": 2304, "ff_dim": 9216, "heads": 8, "kv_heads": 4, "head_dim": 256, "max_context": 2048, "window": 4096}
    | {"query_scalar": 256, "attention_cap": 50.0}
)


def random_text(config: TextConfig) -> TextDecoder:
    torch.manual_seed(0)
    text = TextDecoder(config).requires_grad_(False).eval()
    for module in text.modules():
        for parameter in module.parameters(recurse=False):
            parameter.normal_(0.0, 0.3 if isinstance(module, Norm) else parameter.shape[-1] ** -0.5)
    return text


def fused_decode(text: TextDecoder) -> FusedDecode:
    return FusedDecode(block_weights(text), rotary_rows(text.config, text.words.device))


class Context:
    """Sequences of some lengths in a cache of random keys and values, scattered over its pages."""

    def __init__(self, text: TextDecoder, lengths: list[int]) -> None:
        self.text, config, self.device = text, text.config, text.words.device
        shape = ModelShape(
            layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, max_context=config.max_context,
            prefix_length=None, bos_id=None, dim=config.dim, vocab_size=config.vocab_size,
        )  # fmt: skip
        each = -(-(max(lengths) + 1) // PAGE)
        self.cache = PagedCache(shape, 1 + each * len(lengths), PAGE, self.device, text.words.dtype)
        generator = torch.Generator(self.device).manual_seed(0)
        for layer in (*self.cache.keys, *self.cache.values):
            layer.copy_(torch.randn(layer.shape, generator=generator, device=self.device).bfloat16())
        order = torch.randperm(each * len(lengths), generator=generator, device=self.device) + 1
        self.rows = torch.zeros(len(lengths), PAGES + each, dtype=torch.int32, device=self.device)
        self.rows[:, POSITION] = torch.tensor(lengths, device=self.device)
        self.rows[:, PAGES:] = order.view(len(lengths), each)
        position = self.rows[:, POSITION].long()
        page = self.rows[:, PAGES:].gather(1, (position // PAGE)[:, None])[:, 0]
        self.rows[:, WRITE_SLOT] = page * PAGE + position % PAGE

    @torch.inference_mode()
    def fused(self, decoder: FusedDecode, x: Tensor) -> Tensor:
        given = NextPositions(self.rows[:, POSITION], self.rows[:, WRITE_SLOT], self.rows[:, PAGES:])
        return decoder(x.to(self.device, self.text.words.dtype, copy=True), given, self.cache)

    @torch.inference_mode()
    def plain(self, x: Tensor) -> Tensor:
        x = x.to(self.device, self.text.words.dtype)[:, None]
        positions = self.rows[:, POSITION : POSITION + 1]
        return self.text(x, positions, decode_attention(self.cache, self.rows))[:, 0]


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_those_of_the_plain_decoder(name: str) -> None:
    text = random_text(CONFIGS[name]).double()
    fused, plain = (Context(text, [31, 0, 63, 64, 7]) for _ in range(2))
    x = torch.randn(5, text.config.dim).double()
    wanted = plain.plain(x)

    torch.testing.assert_close(fused.fused(fused_decode(text), x), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fused.cache.keys, plain.cache.keys, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fused.cache.values, plain.cache.values, rtol=1e-6, atol=1e-6)
    assert torch.equal(plain.plain(x), wanted)  # its layers keep what was joined


def test_joined_weights_are_there_once() -> None:
    text = random_text(CONFIGS["capped"])
    block = fused_decode(text)._blocks[0]
    memory = {parameter.untyped_storage().data_ptr() for parameter in text.parameters()}
    matrices = (block.w_qkv, block.w_out, block.w_gate_up, block.w_down)
    assert {matrix.untyped_storage().data_ptr() for matrix in matrices} <= memory


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
def test_rounding_costs_no_more_than_in_the_plain_decoder() -> None:
    exact = random_text(WIDE).bfloat16().float().cuda()
    text = copy.deepcopy(exact).bfloat16()
    decoder = fused_decode(text)
    assert FusedText(text).plain_parts() == {"prompts": None, "decode steps": None}
    total = [0.0, 0.0]
    for rows in (1, 2, 8, 32, 64, 70):
        lengths = [850 - 37 * row % 850 for row in range(rows)]
        fused, plain, truth = (Context(one, lengths) for one in (text, text, exact))
        x = torch.randn(rows, WIDE.dim).bfloat16()
        wanted = truth.plain(x)
        found = fused.fused(decoder, x)
        assert torch.equal(Context(text, lengths).fused(decoder, x), found)
        errors = distance(found, wanted), distance(plain.plain(x), wanted)
        assert errors[0] < 1.5 * errors[1], f"{rows} rows: {errors}"
        total = [total[0] + errors[0], total[1] + errors[1]]
    assert total[0] < 1.2 * total[1], total

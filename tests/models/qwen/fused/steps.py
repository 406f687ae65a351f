"""Tiny decoders with random weights, and sequences of some lengths in a cache of random keys and values."""

from typing import Any

import torch
from torch import Tensor, nn

from photonlite.kernels.reference.attention import FP8
from photonlite.models.base import ModelShape, NextPositions
from photonlite.models.layers import RMSNorm
from photonlite.models.qwen.config import VERSIONS, TextConfig
from photonlite.models.qwen.fused.decode import FusedDecode
from photonlite.models.qwen.fused.layers import block_weights, rotary_rows
from photonlite.models.qwen.text import TextDecoder
from photonlite.runner.buffers import PagedCache
from photonlite.runner.decode import decode_attention
from photonlite.runner.slots import PAGES, POSITION, WRITE_SLOT

SCALES = (0.25, 0.125)


def text_config(**changes: Any) -> TextConfig:
    base: dict[str, Any] = {
        "dim": 40, "ff_dim": 36, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 64,
        "max_context": 256, "norm_eps": 1e-6, "rope_theta": 1e6, "sections": (4, 2, 2), "interleaved": True,
        "tied": False,
    }  # fmt: skip
    return TextConfig(**base | changes)


CONFIGS = {
    "3": ("qwen3_vl", text_config()),
    "3-one-kv-head": ("qwen3_vl", text_config(heads=3, kv_heads=1, head_dim=24, sections=(6, 3, 3), tied=True)),
    "2.5": ("qwen2_5_vl", text_config(interleaved=False, ff_dim=33)),
    "2.5-one-layer": ("qwen2_5_vl", text_config(interleaved=False, layers=1, heads=7, kv_heads=1, head_dim=16)),
}


def random_decoder(name: str, config: TextConfig, seed: int = 0) -> TextDecoder:
    """Make a decoder of a generation (see `VERSIONS`) with random weights, in float32."""
    torch.manual_seed(seed)
    text = TextDecoder(config, VERSIONS[name]).requires_grad_(False).eval()
    for module in text.modules():
        for parameter in module.parameters(recurse=False):
            if isinstance(module, RMSNorm):
                parameter.normal_(1.0, 0.3)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5 if isinstance(module, nn.Linear) else 0.5)
    return text


def fused_decode(text: TextDecoder) -> FusedDecode:
    return FusedDecode(block_weights(text), rotary_rows(text.config, text.words.device))


def shape_of(config: TextConfig) -> ModelShape:
    return ModelShape(
        layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, max_context=config.max_context,
        prefix_length=1, bos_id=0, dim=config.dim, vocab_size=config.vocab_size,
    )  # fmt: skip


class Context:
    """Sequences of some lengths in a cache of random keys and values, scattered over its pages.

    Args:
        text: Whose cache it is.
        lengths: Positions of each sequence.
        page: Positions of a page.
        kv_dtype: Of the cache; that of the decoder unless given.
        steps: That may be run.
        delta: Added to the index of a position for what rotates it, as behind an image.
    """

    def __init__(
        self,
        text: TextDecoder,
        lengths: list[int],
        *,
        page: int = 16,
        kv_dtype: torch.dtype | None = None,
        steps: int = 10,
        delta: int = 0,
    ) -> None:
        self._text, self._page, self._delta = text, page, delta
        self.device, self.dtype = text.words.device, text.words.dtype
        generator = torch.Generator(self.device).manual_seed(0)
        each = -(-(max(lengths) + steps) // page)
        pages, layers = 1 + each * len(lengths), text.config.layers
        scales = [SCALES] * layers if kv_dtype == FP8 else []
        self.cache = PagedCache(shape_of(text.config), pages, page, self.device, kv_dtype or self.dtype, scales)
        for kept, scale in zip((self.cache.keys, self.cache.values), SCALES if scales else (1.0, 1.0), strict=True):
            for layer in kept:
                numbers = torch.randn(layer.shape, generator=generator, device=self.device)
                layer.copy_((numbers.bfloat16().float() / scale).to(kept.dtype))
        order = torch.randperm(pages - 1, generator=generator, device=self.device) + 1
        self.rows = torch.zeros(len(lengths), PAGES + each, dtype=torch.int32, device=self.device)
        self.rows[:, POSITION] = torch.tensor(lengths, device=self.device)
        self.rows[:, PAGES:] = order.view(len(lengths), each)
        self._aim()

    def advance(self) -> None:
        self.rows[:, POSITION] += 1
        self._aim()

    def fused(self, decoder: FusedDecode, x: Tensor) -> Tensor:
        turns = (self.rows + self._delta)[:, POSITION] if self._delta else None
        given = NextPositions(self.rows[:, POSITION], self.rows[:, WRITE_SLOT], self.rows[:, PAGES:], turns)
        with torch.inference_mode():
            return decoder(x.to(self.device, self.dtype, copy=True), given, self.cache)

    def plain(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            attention = decode_attention(self.cache, self.rows)
            x = x.to(self.device, self.dtype)[:, None]
            turns = self.rows[:, POSITION : POSITION + 1] + self._delta
            return self._text(x, turns.expand(3, -1, -1), attention)[:, 0]

    def _aim(self) -> None:
        position = self.rows[:, POSITION].long()
        page = self.rows[:, PAGES:].gather(1, (position // self._page)[:, None])[:, 0]
        self.rows[:, WRITE_SLOT] = page * self._page + position % self._page


def embeddings(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)).bfloat16().float()

"""The least time that a stage could take, from rates that the device reached in the same run.

Decoding must read its matrices, its keys and its values, at the read bandwidth. Encoding and prefill must compute their
products and their attention, each of them timed alone in its own shape. Norms, activations, rotations and residuals
count nothing: a run at its floor has hidden them all.
"""

import functools
from dataclasses import dataclass

import torch

from bench.gpu.ceilings import Ceilings, Heads, Product, attention_seconds, measure_ceilings, products_seconds
from bench.gpu.clock import Clock
from photonlite.models.moondream.config import MoondreamConfig


@dataclass(frozen=True, slots=True)
class Stage:
    """The floor of one stage.

    Attributes:
        products_s: Its products, in seconds.
        attention_s: Its attention, in seconds.
        backend: Which kernel attended fastest.
    """

    products_s: float
    attention_s: float
    backend: str

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.products_s + self.attention_s


class Floors:
    """Floors of a model's stages on one device; each is measured when it is first asked for.

    Args:
        clock: Of the device.
        config: Of the model.
        dtype: Of its weights.
        ceilings: Of the device.
    """

    def __init__(self, clock: Clock, config: MoondreamConfig, dtype: torch.dtype, ceilings: Ceilings) -> None:
        self.ceilings = ceilings
        self._clock = clock
        self._config = config
        self._dtype = dtype
        self.encoder = functools.cache(self._encoder)
        self.projector = functools.cache(self._projector)
        self.prefill = functools.cache(self._prefill)

    def decode(self, streams: int, context: float, *, kv_bytes: int, head: bool = True) -> float:
        """Return the seconds in which one decode step could read what it must.

        Args:
            streams: Sequences.
            context: Positions of each, on average.
            kv_bytes: Bytes of a number in the KV cache.
            head: Whether the language head is read.
        """
        text = self._config.text
        kv = 2 * text.n_layers * text.kv_heads * text.head_dim * kv_bytes
        return (decoder_bytes(self._config, self._dtype, head=head) + streams * context * kv) / self.ceilings.read

    def _encoder(self, crops: int, *, fp8: bool = False) -> Stage:
        """Encode crops, without the projection into the decoder's space."""
        vision = self._config.vision
        products = encoder_products(self._config, crops)
        heads = Heads(
            crops,
            vision.enc_n_heads,
            vision.n_patches,
            vision.enc_dim // vision.enc_n_heads,
            vision.enc_n_layers,
        )
        return self._stage(products, heads, fp8)

    def _projector(self, *, fp8: bool = False) -> float:
        """Project the features of one image; in seconds."""
        vision = self._config.vision
        products = [
            Product(vision.n_patches, 2 * vision.enc_dim, vision.proj_inner_dim),
            Product(vision.n_patches, vision.proj_inner_dim, vision.proj_out_dim),
        ]
        return products_seconds(self._clock, products, self._dtype, fp8=fp8)

    def _prefill(self, tokens: int, rows: int = 1, *, fp8: bool = False) -> Stage:
        """Prefill `rows` prompts of `tokens` positions each, those of the image among them; no language head."""
        text = self._config.text
        heads = Heads(rows, text.n_heads, tokens, text.head_dim, text.n_layers)
        return self._stage(prefill_products(self._config, tokens * rows), heads, fp8)

    def _stage(self, products: list[Product], heads: Heads, fp8: bool) -> Stage:
        seconds = products_seconds(self._clock, products, self._dtype, fp8=fp8)
        return Stage(seconds, *attention_seconds(self._clock, heads, self._dtype))


def measure_floors(clock: Clock, config: MoondreamConfig, dtype: torch.dtype) -> Floors:
    """Measure the device's ceilings, with as much memory and as large a product as suits it."""
    cuda = clock.device.type == "cuda"
    size, side = (1 << 32, 8192) if cuda else (1 << 24, 256)
    return Floors(clock, config, dtype, measure_ceilings(clock, dtype, size=size, side=side))


def encoder_products(config: MoondreamConfig, crops: int) -> list[Product]:
    """List the matrix products of the vision encoder for this number of crops."""
    vision = config.vision
    rows, dim, layers = crops * vision.n_patches, vision.enc_dim, vision.enc_n_layers
    return [
        Product(rows, vision.patch_dim, dim),
        Product(rows, dim, 3 * dim, layers),
        Product(rows, dim, dim, layers),
        Product(rows, dim, vision.enc_ff_dim, layers),
        Product(rows, vision.enc_ff_dim, dim, layers),
    ]


def prefill_products(config: MoondreamConfig, tokens: int) -> list[Product]:
    """List the matrix products of the decoder for this number of positions.

    Products that share an input, or are summed, count as one.
    """
    text = config.text
    qkv = (text.n_heads + 2 * text.kv_heads) * text.head_dim
    return [
        Product(tokens, text.dim, qkv + text.ff_dim, text.n_layers),
        Product(tokens, text.dim + text.ff_dim, text.dim, text.n_layers),
    ]


def decoder_bytes(config: MoondreamConfig, dtype: torch.dtype, *, head: bool = True) -> int:
    """Count the bytes of the decoder's matrices, with or without the language head."""
    text = config.text
    weights = sum(one.inner * one.outer * one.count for one in prefill_products(config, 1))
    return (weights + head * text.vocab_size * text.dim) * dtype.itemsize

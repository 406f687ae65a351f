"""The least time that a stage could take, from rates that the device reached in the same run.

Decoding must read its matrices, its keys and its values, at the read bandwidth. Of experts it must read those that some
sequence goes to: as many as routes drawn evenly and independently would meet. Encoding and prefill must compute their
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

    def decode(
        self, streams: int, context: float, *, kv_bytes: int, head: bool = True, matrices: int | None = None
    ) -> float:
        """Return the seconds in which one decode step could read what it must.

        Args:
            streams: Sequences.
            context: Positions of each, on average.
            kv_bytes: Bytes of a number in the KV cache.
            head: Whether the language head is read.
            matrices: Bytes of the decoder's matrices, where they are not in the model's type.
        """
        text = self._config.text
        kv = 2 * text.n_layers * text.kv_heads * text.head_dim * kv_bytes
        own = decoder_bytes(self._config, self._dtype, head=head) if matrices is None else matrices
        weights = own + expert_bytes(self._config, self._dtype, streams)
        return (weights + streams * context * kv) / self.ceilings.read

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

    Products that share an input, or are summed, count as one, and so do those of all experts.
    """
    text, moe = config.text, config.text.moe
    qkv = (text.n_heads + 2 * text.kv_heads) * text.head_dim
    dense, sparse = _layers(config)
    products = [
        Product(tokens, text.dim, qkv + text.ff_dim, dense),
        Product(tokens, text.dim + text.ff_dim, text.dim, dense),
    ]
    if moe is not None:
        products += [
            Product(tokens, text.dim, qkv + moe.num_experts, sparse),
            Product(tokens, text.dim, text.dim, sparse),
            Product(tokens * moe.experts_per_token, text.dim, 2 * moe.expert_inner_dim, sparse),
            Product(tokens * moe.experts_per_token, moe.expert_inner_dim, text.dim, sparse),
        ]
    if text.tau:
        products.append(Product(tokens, qkv, 2 * text.n_heads, text.n_layers))
    return [one for one in products if one.count]


def decoder_bytes(config: MoondreamConfig, dtype: torch.dtype, *, head: bool = True) -> int:
    """Count the bytes of the decoder's matrices without experts, with or without the language head."""
    text = config.text
    weights = sum(one.inner * one.outer * one.count for one in prefill_products(config, 1) if one.rows == 1)
    return (weights + head * text.vocab_size * text.dim) * dtype.itemsize


def expert_bytes(config: MoondreamConfig, dtype: torch.dtype, streams: int) -> float:
    """Count the bytes of the experts that a step of some sequences reads, if routes are even and independent."""
    moe = config.text.moe
    if moe is None:
        return 0.0
    met = moe.num_experts * (1 - (1 - moe.experts_per_token / moe.num_experts) ** streams)
    return met * _layers(config)[1] * bytes_of_expert(config, dtype)


def bytes_of_expert(config: MoondreamConfig, dtype: torch.dtype) -> int:
    """Count the bytes of one expert of one layer."""
    moe, dim = config.text.moe, config.text.dim
    if moe is None:
        return 0
    numbers, rows = 3 * moe.expert_inner_dim * dim, 2 * moe.expert_inner_dim + dim
    return numbers + 4 * rows if moe.fp8 else numbers * dtype.itemsize


def _layers(config: MoondreamConfig) -> tuple[int, int]:
    """Return how many layers have an MLP, and how many have experts."""
    text, moe = config.text, config.text.moe
    dense = text.n_layers if moe is None else min(moe.start_layer, text.n_layers)
    return dense, text.n_layers - dense

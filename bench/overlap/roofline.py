"""What bounds each operation of an encoding and of a decode step: arithmetic and bytes over the card's own rates.

Arithmetic counts multiplications and additions of products and attention. Bytes count matrices, keys and values once,
and activations of products once in and once out. The least time of an operation is the larger of both times; norms,
activations and launches count nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bench.bubble.report import table
from bench.gpu.ceilings import Ceilings, Product
from bench.gpu.floors import encoder_products, prefill_products
from photonlite.models.moondream.config import MoondreamConfig

HEAD = ["operation", "GFLOP", "MB", "arithmetic (ms)", "memory (ms)", "bound by", "measured (ms)", "share"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Arithmetic and bytes of one kind of operation in a pass."""

    name: str
    operations: float
    bytes: float

    def times(self, ceilings: Ceilings) -> tuple[float, float]:
        """Return the seconds of arithmetic and of memory at the card's rates."""
        return self.operations / ceilings.matmul, self.bytes / ceilings.read


def encoding_operations(config: MoondreamConfig, crops: int, dtype: torch.dtype) -> list[Operation]:
    """List what an encoding of an image takes, without the projection."""
    vision = config.vision
    rows, size = crops * vision.n_patches, dtype.itemsize
    attention = 4.0 * rows * vision.n_patches * vision.enc_dim * vision.enc_n_layers
    return [
        _products("encoder products", encoder_products(config, crops), size),
        Operation("encoder attention", attention, 4.0 * rows * vision.enc_dim * vision.enc_n_layers * size),
    ]


def step_operations(config: MoondreamConfig, streams: int, context: int, dtype: torch.dtype) -> list[Operation]:
    """List what a decode step takes."""
    text, size = config.text, dtype.itemsize
    values = 2.0 * streams * context * text.n_layers * text.head_dim
    return [
        _products("step products", prefill_products(config, streams), size),
        Operation("step attention", 2 * values * text.n_heads, values * text.kv_heads * size),
        _products("language head", [Product(streams, text.dim, text.vocab_size)], size),
    ]


def roofline_table(groups: Mapping[str, tuple[Sequence[Operation], float]], ceilings: Ceilings) -> str:
    """Write groups of operations with their measured seconds: a row each, and one for the whole of each group.

    The whole is at least the sum of its operations' least times: they depend on each other.
    """
    rows = []
    for name, (operations, measured) in groups.items():
        least = 0.0
        for one in operations:
            arithmetic, memory = one.times(ceilings)
            least += max(arithmetic, memory)
            cells = [one.name, f"{one.operations / 1e9:.1f}", f"{one.bytes / 1e6:.1f}"]
            cells += [f"{1e3 * arithmetic:.3f}", f"{1e3 * memory:.3f}"]
            rows.append([*cells, "arithmetic" if arithmetic > memory else "memory", "-", "-"])
        total = [sum(one.operations for one in operations) / 1e9, sum(one.bytes for one in operations) / 1e6]
        sums = [1e3 * sum(one.times(ceilings)[which] for one in operations) for which in range(2)]
        cells = [f"**{name}**", *(f"{value:.1f}" for value in total), *(f"{value:.3f}" for value in sums)]
        rows.append([*cells, f"at least {1e3 * least:.3f} ms", f"{1e3 * measured:.3f}", f"{least / measured:.0%}"])
    return table(HEAD, rows)


def _products(name: str, products: Sequence[Product], size: int) -> Operation:
    moved = sum((one.inner * one.outer + one.rows * (one.inner + one.outer)) * one.count for one in products)
    return Operation(name, sum(one.operations for one in products), float(moved * size))

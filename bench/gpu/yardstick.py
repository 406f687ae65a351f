"""Products of decode steps with weights in 8 and 4 bits, beside gemlite's: `python -m bench.gpu.yardstick`.

The two products of a block of Moondream 2's shape, each alone in a CUDA graph over as many copies as there are blocks,
so that weights come from memory. Ours add a bias, and apply GELU or add to the residual stream; gemlite's, where it is
installed, add a bias. Both take the same inputs, and are compared with products of the dense weights before they count.
"""

import argparse
import copy
import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bench.bubble.report import table
from bench.gpu.clock import Clock
from bench.gpu.machine import describe
from photonlite.config import Precision
from photonlite.device.names import resolve_device
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise
from photonlite.kernels.small_batch_gemm import linear_in, linear_out

BLOCKS = 24
PRODUCTS = {"into a block": (2048, 14_336), "out of it": (10_240, 2048)}  # inner and outer
QKV = 6144  # of what goes into a block; the rest goes through GELU
ROWS = (1, 8, 32)
PRECISIONS: tuple[Precision, ...] = ("fp8", "int4")

_GROUP = 128
_ERROR = 0.02  # gemlite adds parts of sums in bfloat16, ours are rounded once
Product = Callable[[Tensor], Tensor]


def ours(weight: QuantisedWeight, bias: Tensor, split: int) -> Product:
    """Return a product of photonlite; with a split its columns from there on go through GELU."""

    def into(x: Tensor) -> Tensor:
        out = x.new_empty(len(x), len(bias))
        linear_in(x, None, weight, bias, None, out[:, :split], out[:, split:])
        return out

    def back(x: Tensor) -> Tensor:
        residual = x.new_zeros(len(x), len(bias))
        linear_out(x, weight, bias, residual, None)
        return residual

    return into if split else back


def theirs(precision: Precision, values: Tensor, scale: Tensor, zero: Tensor, bias: Tensor) -> Product:
    """Return a product of gemlite: of e4m3 values with a scale a row, or of 4-bit codes with scales of groups."""
    helper = importlib.import_module("gemlite.helper")
    if precision == "fp8":
        made = helper.A16W8_FP8(dtype=bias.dtype).from_weights(values, bias=bias, scales=scale.float())
    else:
        made = helper.A16W4_HQQ_INT(dtype=bias.dtype).from_weights(values, scale, zero, bias=bias)
    product: Product = made
    return product


def draw_codes(outs: int, ins: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Draw 4-bit codes, and scales and zeros of their groups."""
    groups = outs * ins // _GROUP
    values = torch.randint(0, 16, (outs, ins), dtype=torch.uint8, device=device)
    scale = ((0.5 + torch.rand(groups, 1, device=device)) / (8 * math.sqrt(ins))).to(dtype)
    return values, scale, (7 + torch.rand(groups, 1, device=device)).to(dtype)


def measure(clock: Clock, products: Sequence[Product], x: Tensor, wanted: Tensor) -> float:
    """Return the seconds of one of some equal products whose results are right, in a graph of all of them."""
    found = products[0](x)
    error = float((found.float() - wanted).norm() / wanted.norm())
    if not error < _ERROR:
        raise AssertionError(f"the product is wrong: its error is {error:.3f}")
    return clock.measure(lambda: [one(x) for one in products], graphed=True, rounds=20).median / len(products)


def rows_of(clock: Clock, name: str, precision: Precision) -> list[list[str]]:
    """Measure one product with each number of rows."""
    ins, outs = PRODUCTS[name]
    split = QKV if name == "into a block" else 0
    device, dtype = clock.device, torch.bfloat16
    matrix = (torch.randn(outs, ins, device=device) / math.sqrt(ins)).to(dtype)
    weight, bias = quantise(matrix, precision), torch.randn(outs, device=device).to(dtype)
    full = other = dequantise(weight, torch.float32)
    size = sum(part.nbytes for part in (weight.values, weight.scale, weight.shift) if part is not None)
    own = [ours(copy.deepcopy(weight), bias, split) for _ in range(BLOCKS)]
    others: list[Product] = []
    if device.type == "cuda" and importlib.util.find_spec("gemlite") is not None:
        values, scale, zero = weight.values, weight.scale, weight.scale
        if precision == "int4":
            values, scale, zero = draw_codes(outs, ins, dtype, device)
            grouped = values.view(-1, _GROUP).float()
            other = ((grouped - zero.float()) * scale.float()).view(outs, ins)
        others = [theirs(precision, values.clone(), scale.clone(), zero.clone(), bias) for _ in range(BLOCKS)]
    rows = []
    for count in ROWS:
        x = torch.randn(count, ins, device=device).to(dtype)
        wanted = x.float() @ full.T + bias.float()
        if split:
            wanted = torch.cat([wanted[:, :split], functional.gelu(wanted[:, split:], approximate="tanh")], dim=1)
        seconds = measure(clock, own, x, wanted)
        cells = ["-", "-"]
        if others:
            least = measure(clock, others, x, x.float() @ other.T + bias.float())
            cells = [f"{1e6 * least:.1f}", f"{least / seconds:.2f} x"]
        what = f"{name}, {precision}, rows: {count}"
        rows.append([what, f"{1e6 * seconds:.1f}", f"{size / seconds / 1e12:.2f}", *cells])
        print(" | ".join(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.yardstick", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--products", nargs="+", choices=PRODUCTS, default=list(PRODUCTS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    options = parser.parse_args(arguments)
    clock = Clock(resolve_device(options.device))
    with torch.inference_mode():
        rows = [
            row
            for name in options.products
            for precision in options.precisions
            for row in rows_of(clock, name, precision)
        ]
    print(f"{time.strftime('%Y-%m-%d')}, {describe(clock.device)}.\n")
    print(table(["product", "ours (us)", "TB/s", "gemlite (us)", "ours is quicker by"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs products that add terms of adapters on the CPU by Triton's interpreter; see `interpreter.py`."""

import torch
from torch import Tensor

from photonlite.config import Precision
from photonlite.kernels import row_adapters, serial_block, tilings
from photonlite.kernels import small_batch_gemm as gemm
from photonlite.kernels.quantised import Weight
from photonlite.kernels.reference import row_adapters as reference
from photonlite.kernels.reference import serial_block as serial_reference
from photonlite.kernels.reference import small_batch_gemm as gemm_reference
from photonlite.kernels.reference.quantised import dequantise, join_columns, quantise
from photonlite.kernels.row_adapters import RowTerms
from photonlite.kernels.small_batch_gemm import Handshake
from photonlite.kernels.tilings import Tiling
from tests.kernels.adapter_cases import block_terms, random_term

DIM, QKV, INNER, ATTENDED = 72, 40, 150, 24
TILINGS = [Tiling(64, 64), Tiling(16, 32, 3), Tiling(32, 32, 2)]
# rows, rank, slots but 0
CASES = [(1, 16, 3), (8, 4, 3), (33, 16, 8), (5, 64, 2), (17, 6, 5)]


def close(found: Tensor, wanted: Tensor) -> None:
    error = 2e-4 if found.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.float(), wanted.float(), atol=error, rtol=error)


def slots_of(rows: int, slots: int) -> list[int]:
    """Return a slot for each row, some of them 0, and the last slot among them; of several slots one has no row."""
    return [slots if not row else row * 5 % slots for row in range(rows)]


def check_block(rows: int, rank: int, slots: int, tiling: Tiling, sizes: tuple[int, int, int, int], **kind) -> None:
    """Both products of a block, with the late columns of the second and without, and rows without an adapter."""
    dim, qkv, inner, attended = sizes
    w_in, w_out, dtype = kind["w_in"], kind["w_out"], kind["dtype"]
    tilings.tiling_of = lambda *_, **__: tiling  # type: ignore[assignment]
    x, inside, norm, b_in, b_out = (
        torch.randn(rows, dim).to(dtype),
        torch.randn(rows, attended + inner).to(dtype),
        (torch.randn(dim).to(dtype), torch.randn(dim).to(dtype), 1e-5),
        torch.randn(qkv + inner).to(dtype),
        torch.randn(dim),
    )
    index = torch.tensor(slots_of(rows, slots), dtype=torch.int32)
    terms, columns = block_terms(slots, rank, sizes, dtype)
    lows = [torch.full((rows + 2, columns), 7.0)[:rows] for _ in range(2)]

    def added(which: int, name: str) -> RowTerms:
        return RowTerms(index, lows[which], terms[name])

    normal = row_adapters.shrink(x, added(0, "of_norm"), norm)
    wanted_normal = torch.nn.functional.layer_norm(x, (dim,), *norm)
    close(normal, wanted_normal)
    reference.shrink(normal, added(1, "of_norm"))
    assert row_adapters.shrink(inside, added(0, "of_inside")) is inside
    reference.shrink(inside, added(1, "of_inside"))
    close(lows[0][index > 0].to(dtype), lows[1][index > 0].to(dtype))
    assert (lows[0][index == 0] == 7).all(), "rows without an adapter are not written"
    for low in lows:
        low[index == 0] = torch.nan  # nor read

    ready = torch.zeros(2, dtype=torch.int32)
    shake = Handshake(ready[:1], ready[1:], -(-(qkv + inner) // tiling.outs) * tiling.parts, attended)
    made = [[x.new_full((rows, size), torch.nan) for size in (qkv, inner)] for _ in range(3)]
    gemm.linear_in(normal, None, w_in, b_in, None, *made[0], shake, added(0, "into"))
    gemm_reference.linear_in(normal, matrix(w_in, dtype), b_in, None, *made[1], added(1, "into"))
    gemm.linear_in(normal, None, w_in, b_in, None, *made[2])
    for found, wanted, plain in zip(*made, strict=True):
        close(found, wanted)
        assert torch.equal(found[index == 0], plain[index == 0])
        assert not torch.allclose(found[index > 0], plain[index > 0], atol=0.1)

    for handshake in (shake, None):
        streams = [x.clone() for _ in range(3)]
        gemm.linear_out(inside, w_out, b_out, streams[0], None, handshake, added(0, "out"))
        gemm_reference.linear_out(inside, matrix(w_out, dtype), b_out, streams[1], None, added(1, "out"))
        gemm.linear_out(inside, w_out, b_out, streams[2], None, handshake)
        close(streams[0], streams[1])
        assert torch.equal(streams[0][index == 0], streams[2][index == 0])
        assert not torch.allclose(streams[0][index > 0], streams[2][index > 0], atol=0.1)


def check_serial(rows: int, rank: int, slots: int, tiling: Tiling) -> None:
    """The products of a serial block: inputs that are divided later, SwiGLU of pairs, scales for the next norm."""
    tilings.tiling_of = lambda *_, **__: tiling  # type: ignore[assignment]
    x, gain = torch.randn(rows, DIM), torch.randn(DIM) + 1
    w_gated, w_down = torch.randn(2 * INNER, DIM) / DIM**0.5, torch.randn(DIM, INNER) / INNER**0.5
    index = torch.tensor(slots_of(rows, slots), dtype=torch.int32)
    low = torch.full((rows, 3 * rank), torch.nan)
    scales, *new = (serial_block.empty_scales(rows, DIM, INNER, 1e-6, x, adapted=True) for _ in range(3))
    serial_block.scale_stream(x, gain, scales)
    inward = [random_term(slots, rank, (DIM, INNER), part * rank, first) for part, first in ((0, INNER), (1, 0))]
    added = RowTerms(index, low, inward)
    row_adapters.shrink(scales.rows, added)
    made = [torch.empty(rows, INNER) for _ in range(3)]
    serial_block.norm_linear(scales, w_gated, None, made[0], gated=True, added=added)
    serial_reference.norm_linear(scales, w_gated, None, made[1], gated=True, added=added)
    serial_block.norm_linear(scales, w_gated, None, made[2], gated=True)
    added = RowTerms(index, low, [random_term(slots, rank, (INNER, DIM), 2 * rank, 0)])
    row_adapters.shrink(made[0], added)
    streams = [x.clone() for _ in range(3)]
    serial_block.add_linear(made[0], w_down, streams[0], (gain, new[0]), added)
    serial_reference.add_linear(made[0], w_down, streams[1], (gain, new[1]), added)
    serial_block.add_linear(made[0], w_down, streams[2], None)
    for found, wanted, plain in (made, streams):
        close(found, wanted)
        assert torch.equal(found[index == 0], plain[index == 0])
        assert not torch.allclose(found[index > 0], plain[index > 0], atol=0.1)
    close(new[0].rows, new[1].rows)
    close(new[0].squares, new[1].squares)


def matrix(weight: Weight, dtype: torch.dtype) -> Tensor:
    return weight if isinstance(weight, Tensor) else dequantise(weight, dtype)


def check_full() -> None:
    for number, case in enumerate(CASES[:3]):
        check_serial(*case, TILINGS[number % 2])
    sizes = DIM, QKV, INNER, ATTENDED
    for number, case in enumerate(CASES):
        w_in, w_out = torch.randn(QKV + INNER, DIM) / DIM**0.5, torch.randn(DIM, ATTENDED + INNER) / 10
        check_block(*case, TILINGS[number % 3], sizes, w_in=w_in, w_out=w_out, dtype=torch.float32)


def check_quantised() -> None:
    sizes = 128, 40, 256, 128
    precisions: tuple[tuple[Precision, torch.dtype], ...] = (("int8", torch.float32), ("int4", torch.float16))
    for precision, dtype in precisions:
        w_in = quantise((torch.randn(296, 128) / 11).to(dtype), precision)
        w_out = join_columns([quantise((torch.randn(128, size) / 20).to(dtype), precision) for size in (128, 256)])
        check_block(5, 16, 3, Tiling(32, 128, 2), sizes, w_in=w_in, w_out=w_out, dtype=dtype)


def main() -> None:
    torch.manual_seed(0)
    row_adapters._NARROW = 64  # more than one step
    gemm.supported = serial_block.supported = lambda x, weight: True  # type: ignore[assignment]
    check_full()
    check_quantised()
    print("the kernels agree")

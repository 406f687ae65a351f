"""Runs products with quantised weights on the CPU by Triton's interpreter; see `interpreter.py`."""

import pytest
import torch
from torch import Tensor

from photonlite.config import Precision
from photonlite.kernels import quantised, serial_block, tilings
from photonlite.kernels import small_batch_gemm as gemm
from photonlite.kernels.quantised import dense
from photonlite.kernels.reference import serial_block as serial_reference
from photonlite.kernels.reference import small_batch_gemm as reference
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, join_columns, quantise
from photonlite.kernels.small_batch_gemm import Handshake, Scales
from photonlite.kernels.tilings import Tiling

F32 = torch.float32
DIM, WIDTH, INNER = 128, 128, 256  # of the stream, of attention's output, of the MLP
TILINGS = [Tiling(64, 128, 1), Tiling(16, 128, 3), Tiling(32, 128, 2, 4, 3, 2)]
SINGLE = [Tiling(8, 128, 1, 4, 0), Tiling(16, 512, 1, 4, 0)]  # the second only where steps may have several groups


def close(found: Tensor, wanted: Tensor) -> None:
    error = 2e-4 if found.dtype == F32 else 2e-2
    torch.testing.assert_close(found.to(F32), wanted.to(F32), atol=error, rtol=error)


def random(*size: int) -> Tensor:
    return torch.randn(size) / 4


def as_taken(precision: Precision, *tensors: Tensor) -> list[Tensor]:
    """Return what kernels of a precision take: those of int4 know inputs of 16 bits alone."""
    return [one.half() if precision == "int4" else one for one in tensors]


def parallel_block(rows: int, precision: Precision) -> None:
    """Both products of a block, the second with and without its columns of attention coming last."""
    x, inside = as_taken(precision, random(rows, DIM), random(rows, WIDTH + INNER))
    gain, shift, b_in, b_out = as_taken(precision, random(DIM) + 1, random(DIM), random(100), random(DIM))
    norm, w_in = (gain, shift, 1e-5), quantise(random(100, DIM), precision)
    w_out = join_columns([quantise(random(DIM, columns), precision) for columns in (WIDTH, INNER)])
    made = [[x.new_full((rows, size), torch.nan) for size in (36, 64)] for _ in range(2)]
    width = tilings.stats_width(DIM, WIDTH + INNER, group=gemm.group_of(w_out))
    single = gemm.is_single(rows, w_in) and not tilings.tiling_of(rows, DIM, WIDTH + INNER).stages
    stats = gemm.tile_statistics(x, width) if single else None
    gemm.linear_in(x, stats, w_in, b_in, norm, *made[0])
    reference.linear_in(x, dequantise(w_in, x.dtype), b_in, norm, *made[1])
    for found, wanted in zip(*made, strict=True):
        close(found, wanted)

    ready = torch.tensor([5], dtype=torch.int32)
    for handshake in (None, Handshake(ready, torch.zeros(1, dtype=torch.int32), 5, WIDTH)):
        found, wanted = x.clone(), x.clone()
        new = None if stats is None else torch.empty_like(stats)
        gemm.linear_out(inside, w_out, b_out, found, new, handshake)
        reference.linear_out(inside, dequantise(w_out, x.dtype), b_out, wanted, None)
        close(found, wanted)
        if new is not None:
            close(new.to(x.dtype), reference.tile_statistics(found, width).to(x.dtype))


def serial(rows: int, precision: Precision) -> None:
    """The products of a serial block, and a head."""
    x, inside = as_taken(precision, random(rows, DIM), random(rows, INNER))
    gain, shift, b_qkv = as_taken(precision, random(DIM) + 1, random(DIM), random(40))
    group = 128 if precision == "int4" else DIM
    w_qkv, w_gated = (quantise(random(outs, DIM), precision) for outs in (40, 2 * INNER))
    w_down = quantise(random(DIM, INNER), precision)
    scales, new = (serial_block.empty_scales(rows, DIM, INNER, 1e-6, x, group=group) for _ in range(2))
    serial_block.scale_stream(x, gain, scales)
    for weight, bias, gated in ((w_qkv, b_qkv, False), (w_gated, None, True)):
        made = [x.new_empty(rows, len(weight) // (2 if gated else 1)) for _ in range(2)]
        serial_block.norm_linear(scales, weight, bias, made[0], gated=gated)
        serial_reference.norm_linear(scales, dequantise(weight, x.dtype), bias, made[1], gated=gated)
        close(*made)
    wanted_new = Scales(torch.empty_like(new.rows), torch.empty_like(new.squares), new.eps)
    found, wanted = x.clone(), x.clone()
    serial_block.add_linear(inside, w_down, found, (gain, new))
    serial_reference.add_linear(inside, dequantise(w_down, x.dtype), wanted, (gain, wanted_new))
    close(found, wanted)
    close(new.rows, wanted_new.rows)
    close(new.squares.to(x.dtype), wanted_new.squares.to(x.dtype))
    norm = gain, shift, 1e-5
    head = quantise(random(100, DIM), precision)
    close(
        gemm.small_batch_gemm(x, head, x.new_zeros(100), norm=norm, gelu=True),
        reference.small_batch_gemm(x, dequantise(head, x.dtype), None, norm=norm, gelu=True),
    )


def matrices() -> None:
    """Matrices that are turned back, of several groups, with rows and columns that no program divides."""
    for precision in ("int8", "int4"):
        for rows, columns in ((5, 640), (9, 48), (4, 520 if precision == "int8" else 528)):
            weight = quantise(random(rows, columns), precision)
            assert torch.equal(dense(weight, F32), dequantise(weight, F32))
            assert torch.equal(dense(weight[1:3], F32), dequantise(weight[1:3], F32))
        joined = join_columns([quantise(random(6, columns), precision) for columns in (128, 256)])
        assert torch.equal(dense(joined, F32), dequantise(joined, F32))


def refusals() -> None:
    weight = quantise(random(64, DIM), "int4")
    joined = join_columns([quantise(random(64, DIM), "int8"), quantise(random(64, DIM), "int8")])
    for given, tiling in (
        (weight, Tiling(64, 64, 1)),
        (weight, Tiling(8, 64, 1, 4, 0)),
        (joined, Tiling(8, 256, 1, 4, 0)),
        (joined, Tiling(64, 256, 1)),
    ):
        x, out = random(1, given.shape[1]), random(1, 64)
        with pytest.raises(ValueError, match="does not go with"):
            gemm.run_product(x, given, None, raw=out, activated=out, split=64, tiling=tiling)
    odd = quantise(random(64, 144), "int4")
    assert isinstance(odd, QuantisedWeight)
    assert quantised.obstacle(odd) is not None


def main() -> None:
    torch.manual_seed(0)
    gemm.supported = serial_block.supported = lambda x, weight: True  # type: ignore[assignment]
    refusals()
    matrices()
    for tiling in (*TILINGS, *SINGLE):
        tilings.tiling_of = lambda *_, chosen=tiling, **__: chosen  # type: ignore[assignment]
        for precision in ("int8", "int4") if tiling is not SINGLE[1] else ("int4",):
            for rows in (17,) if tiling is TILINGS[2] else (1,) if tiling is TILINGS[0] or tiling in SINGLE else (5,):
                parallel_block(rows, precision)
                serial(rows, precision)
    print("interpreted kernels agree")

"""Device code for a few rows in front of a product: their statistics, their norm, or both halves of an RMS norm."""

from __future__ import annotations

from photonlite.kernels.triton_utils import tl, triton


@triton.jit
def statistics_kernel(x: tl.tensor, stats: tl.tensor, width: tl.tensor, TILE: tl.constexpr, PDL: tl.constexpr) -> None:
    """Write mean and sum of squared deviations of tile `program_id(0)` of row `program_id(1)`."""
    tile, row = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    column = tile * TILE + tl.arange(0, TILE)
    inside = column < width
    value = tl.load(x + row.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32)
    count = tl.minimum(TILE, width - tile * TILE)
    mean = tl.sum(value, axis=0) / count
    off = tl.where(inside, value - mean, 0.0)
    place = tile * tl.num_programs(1) + row
    tl.store(stats + place, mean)
    tl.store(stats + tl.num_programs(0) * tl.num_programs(1) + place, tl.sum(off * off, axis=0))


@triton.jit
def scale_kernel(
    x: tl.tensor, gain: tl.tensor, scaled: tl.tensor, squares: tl.tensor, width: tl.tensor, TILE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Scale tile `program_id(0)` of row `program_id(1)` by the weight of its RMS norm; write the sum of its squares."""
    tile, row = tl.program_id(0), tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    inside = column < width
    slope = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + row.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled + row.to(tl.int64) * width + column, (value * slope).to(scaled.dtype.element_ty), mask=inside)
    tl.store(squares + tile * tl.num_programs(1) + row, tl.sum(value * value, axis=0))


@triton.jit
def normalise_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, width: tl.tensor, x_stride: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr, CENTRED: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Write the layer norm of row `program_id(0)`, or its RMS norm unless `CENTRED`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.zeros([WIDTH], tl.float32)
    if CENTRED:
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        value = tl.where(inside, value - tl.sum(value, axis=0) / width, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    tl.store(out + row * width + column, (value * scale * gain + shift).to(out.dtype.element_ty), mask=inside)

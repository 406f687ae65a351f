"""Crops from an image's pixels, bit for bit as Pillow's Lanczos filter computes them: two Triton kernels.

```
pixels [H, W, 3] ── first pass ──> scratch: whole, sheet ── second pass ──> crops [n, C, C, 3]
```

The first launch changes the width of both results (or the height, where the pass down comes first), the second launch
does the rest and writes each pixel of each crop once: where crops overlap the sheet's pixel is computed again, which is
cheaper than writing the sheet and copying from it. Channels are contiguous in memory, so a line of n pixels is treated
as 3 n columns. All arithmetic is int32, which the sums never overflow (`photonlite.images.packing`).

No argument is specialised on its value: every image has its own lengths, and none may wait for a compiler.
"""

from __future__ import annotations

from torch import Tensor

from photonlite.kernels.reference import vision as reference
from photonlite.kernels.reference.vision import Filters
from photonlite.kernels.triton_utils import tl, triton, use_triton

LINES, COLUMNS = 2, 256  # lines and columns of a result that a program computes
WARPS = 4

_SHARED = ["height", "width", "whole_down", "sheet_down", "sheet_length", "whole_taps", "sheet_taps"]


def cut_image(
    pixels: Tensor, whole: Filters, sheet: Filters | None, columns: int, window: int, out: Tensor, scratch: Tensor
) -> None:
    """Resize an image, uint8 ``[H, W, 3]``, twice, and cut the second result into overlapping crops.

    `whole` makes the first crop; `sheet` makes what the others are cut from row by row, `columns` crops in a row and
    `window` pixels from one to the next, and is None where there is only the first. `out`, uint8 ``[n, C, C, 3]``,
    takes the crops; `scratch`, uint8, has as many bytes as the first passes of both resizes give, and is overwritten.
    """
    if not use_triton(pixels):
        reference.cut_image(pixels, whole, sheet, columns, window, out, scratch)
        return
    height, width, _ = pixels.shape
    size = out.shape[1]
    other = whole if sheet is None else sheet  # an unread pointer without a sheet
    areas = [_between(height, width, filters) for filters in ((whole,) if sheet is None else (whole, sheet))]
    needed = sum(3 * lines * length for lines, length in areas)
    if scratch.numel() < needed:
        raise ValueError(f"the scratch has {scratch.numel()} bytes: this image needs {needed}")
    if not all(tensor.is_contiguous() for tensor in (pixels, *whole[:2], *other[:2], out)):
        raise ValueError("the image, its filters and the crops must be contiguous")
    (whole_first, whole_second), (sheet_first, sheet_second) = _in_order(whole), _in_order(other)
    blocks = sum(triton.cdiv(lines, LINES) * triton.cdiv(3 * length, COLUMNS) for lines, length in areas)
    shape = {"LINES": LINES, "COLUMNS": COLUMNS, "num_warps": WARPS}
    order = int(whole.down_first), int(other.down_first)
    _first_kernel[(blocks,)](
        pixels, whole_first, sheet_first, scratch, height, width, *order, size, sheet_first.shape[1],
        whole_first.shape[0] - 1, sheet_first.shape[0] - 1, **shape,
    )  # fmt: skip
    _second_kernel[(triton.cdiv(3 * size, COLUMNS), triton.cdiv(size, LINES), len(out))](
        scratch, whole_second, sheet_second, out, height, width, *order, size,
        sheet_first.shape[1], sheet_second.shape[1], whole_second.shape[0] - 1, sheet_second.shape[0] - 1,
        columns, window, **shape,
    )  # fmt: skip


def _between(height: int, width: int, filters: Filters) -> tuple[int, int]:
    """Return height and width of an image after the first pass."""
    return (filters.down.shape[1], width) if filters.down_first else (height, filters.across.shape[1])


def _in_order(filters: Filters) -> tuple[Tensor, Tensor]:
    return (filters.down, filters.across) if filters.down_first else (filters.across, filters.down)


@triton.jit
def _filter(
    source: tl.tensor, stride: tl.tensor, table: tl.tensor, length: tl.tensor, taps: tl.tensor, down: tl.tensor,
    last: tl.tensor, y: tl.tensor, x: tl.tensor, channel: tl.tensor, real_y: tl.tensor, real_x: tl.tensor,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Filter along one axis: uint8 ``[LINES, COLUMNS]`` at lines `y` and, of pixels `x`, channels `channel`.

    Beyond `last`, the source's last pixel, the coefficients are zero, and what is read does not matter.
    """
    inside = real_y[:, None] & real_x[None, :]
    total = tl.full([LINES, COLUMNS], 1 << 21, tl.int32)
    if down != 0:
        top = tl.load(table + y, mask=real_y, other=0)
        for tap in range(taps):
            share = tl.load(table + (1 + tap) * length + y, mask=real_y, other=0)[:, None]
            place = tl.minimum(top + tap, last)[:, None] * stride + (3 * x + channel)[None, :]
            total += tl.load(source + place, mask=inside, other=0).to(tl.int32) * share
    else:
        left = tl.load(table + x, mask=real_x, other=0)
        for tap in range(taps):
            weight = tl.load(table + (1 + tap) * length + x, mask=real_x, other=0)[None, :]
            place = y[:, None] * stride + (3 * tl.minimum(left + tap, last) + channel)[None, :]
            total += tl.load(source + place, mask=inside, other=0).to(tl.int32) * weight
    return tl.minimum(tl.maximum(total >> 22, 0), 255).to(tl.uint8)


@triton.jit(do_not_specialize=[*_SHARED, "whole_length"])
def _first_kernel(
    pixels: tl.tensor, whole_table: tl.tensor, sheet_table: tl.tensor, scratch: tl.tensor, height: tl.tensor,
    width: tl.tensor, whole_down: tl.tensor, sheet_down: tl.tensor, whole_length: tl.tensor, sheet_length: tl.tensor,
    whole_taps: tl.tensor, sheet_taps: tl.tensor,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Resize along one axis, for both results: the first programs for the whole, the others for the sheet."""
    block = tl.program_id(0)
    lines = tl.where(whole_down != 0, whole_length, height)
    size = tl.where(whole_down != 0, width, whole_length)
    blocks = tl.cdiv(lines, LINES) * tl.cdiv(3 * size, COLUMNS)
    if block < blocks:
        table, length, taps, down, start = whole_table, whole_length, whole_taps, whole_down, 0
    else:
        table, length, taps, down, start = sheet_table, sheet_length, sheet_taps, sheet_down, 3 * lines * size
        block -= blocks
        lines = tl.where(sheet_down != 0, sheet_length, height)
        size = tl.where(sheet_down != 0, width, sheet_length)
    across = tl.cdiv(3 * size, COLUMNS)
    line = block // across * LINES + tl.arange(0, LINES)
    column = block % across * COLUMNS + tl.arange(0, COLUMNS)
    x, channel = column // 3, column % 3
    last = tl.where(down != 0, height, width) - 1
    real_y, real_x = line < lines, x < size
    value = _filter(
        pixels, 3 * width, table, length, taps, down, last, line, x, channel, real_y, real_x, LINES, COLUMNS
    )
    place = start + line[:, None] * (3 * size) + column[None, :]
    tl.store(scratch + place, value, mask=real_y[:, None] & real_x[None, :])


@triton.jit(
    do_not_specialize=[*_SHARED, "size", "sheet_between", "columns", "window"], do_not_specialize_on_alignment=["out"]
)
def _second_kernel(
    scratch: tl.tensor, whole_table: tl.tensor, sheet_table: tl.tensor, out: tl.tensor, height: tl.tensor,
    width: tl.tensor, whole_down: tl.tensor, sheet_down: tl.tensor, size: tl.tensor, sheet_between: tl.tensor,
    sheet_length: tl.tensor, whole_taps: tl.tensor, sheet_taps: tl.tensor, columns: tl.tensor, window: tl.tensor,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Resize along the other axis to a part of crop `program_id(2)`."""
    crop = tl.program_id(2)
    whole_lines = tl.where(whole_down != 0, size, height)
    whole_stride = 3 * tl.where(whole_down != 0, width, size)
    if crop == 0:
        table, length, taps, down = whole_table, size, whole_taps, whole_down
        top, left, start, stride = 0, 0, 0, whole_stride
    else:
        table, length, taps, down = sheet_table, sheet_length, sheet_taps, sheet_down
        top, left = (crop - 1) // columns * window, (crop - 1) % columns * window
        start, stride = whole_lines * whole_stride, 3 * tl.where(sheet_down != 0, width, sheet_between)
    line = tl.program_id(1) * LINES + tl.arange(0, LINES)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x, channel = column // 3, column % 3
    last = tl.where(down != 0, width, height) - 1
    real_y, real_x = line < size, x < size
    value = _filter(
        scratch + start, stride, table, length, taps, 1 - down, last,
        top + line, left + x, channel, real_y, real_x, LINES, COLUMNS,
    )  # fmt: skip
    place = crop.to(tl.int64) * (3 * size * size) + line[:, None] * (3 * size) + column[None, :]
    tl.store(out + place, value, mask=real_y[:, None] & real_x[None, :])

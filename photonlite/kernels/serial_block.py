"""Products of a serial decoder block in decode steps, with its RMS norms, SwiGLU and residual additions inside.

```
stream x ─┬─────────────────────────────────── + ──┬─────────────────────────────────── + ── x of the next block
          └─ norm, w_qkv ── attention ── w_o ──┘   └─ norm, w_gate_up ── SwiGLU ── w_down ┘
             norm_linear            add_linear        norm_linear               add_linear
```

An RMS norm is ``x * gain / rms(x)``. The product that adds to the stream also writes ``x * gain``, rounded once, and
the sum of squares of each of its tiles of columns. The next one multiplies ``x * gain`` and divides its sums by the
root mean square of their row: no kernel normalises, and no program waits for whole rows before it multiplies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels import row_kernels, tilings
from photonlite.kernels.quantised import Weight, dense
from photonlite.kernels.reference import serial_block as reference
from photonlite.kernels.reference.row_adapters import RowTerms
from photonlite.kernels.small_batch_gemm import Scales, run_product, supported
from photonlite.kernels.tilings import SEVERAL
from photonlite.kernels.triton_utils import dependent_launch, power_of_2


def empty_scales(
    rows: int, outs: int, ins: int, eps: float, like: Tensor, *, group: int = 0, adapted: bool = False
) -> Scales:
    """Allocate what :func:`add_linear` writes for `rows` rows with a weight ``[outs, ins]``, in the type of `like`.

    `group` is that of the weight, see `tilings.tiling_of`; `adapted` says whether terms of adapters are added.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    tiles = -(-outs // tilings.tiling_of(max(rows, SEVERAL) if adapted else rows, outs, ins, group=group).outs)
    return Scales(like.new_empty(rows, outs), like.new_empty(tiles, rows, dtype=wide), eps)


def scale_stream(x: Tensor, gain: Tensor, scales: Scales) -> None:
    """Write a residual stream ``[M, K]`` times the weight of its norm, and the sums of squares of its tiles."""
    if not supported(x, x):
        reference.scale_stream(x, gain, scales)
        return
    rows, width = x.shape
    tiles = len(scales.squares)
    row_kernels.scale_kernel[(tiles, rows)](
        x, gain, scales.rows, scales.squares, width,
        TILE=power_of_2(-(-width // tiles)), num_warps=1, **dependent_launch(x),
    )  # fmt: skip


def norm_linear(
    scales: Scales,
    weight: Weight,
    bias: Tensor | None,
    out: Tensor,
    *,
    gated: bool = False,
    added: RowTerms | None = None,
) -> None:
    """Write ``norm(x) @ weight.T + bias``, ``[M, N]``; if `gated`, SwiGLU of it: the first half gates the second.

    A of terms of adapters has been multiplied with the rows of the scales, which the product divides.
    """
    if not supported(scales.rows, weight):
        reference.norm_linear(scales, dense(weight, scales.rows.dtype), bias, out, gated=gated, added=added)
        return
    split = 0 if gated else len(weight)
    run_product(scales.rows, weight, bias, raw=out, activated=out, split=split, gated=gated, scales=scales, added=added)


def add_linear(
    x: Tensor, weight: Weight, residual: Tensor, norm: tuple[Tensor, Scales] | None, added: RowTerms | None = None
) -> None:
    """Add ``x @ weight.T`` to `residual` in place, with one rounding; write the sum's scales for the norm behind it.

    `norm` is that norm's weight and what is written; None without a norm.
    """
    if not supported(x, weight):
        reference.add_linear(x, dense(weight, x.dtype), residual, norm, added)
        return
    run_product(
        x, weight, None,
        raw=residual, activated=residual, split=len(weight), residual=True, new_scales=norm, added=added,
    )  # fmt: skip

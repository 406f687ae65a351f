"""How a product over a few rows is divided among programs: see `kernels.small_batch_gemm`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from photonlite.kernels.quantised import GROUP

_SPARE = 2048  # bytes of shared memory for what is not a step of the loop
_RESERVED = 1024  # bytes that every program takes besides
_LEAST_STEP, _WIDEST = 32, 128  # columns of the least step, weight rows of the widest program
_PROGRAMS = 132  # multiprocessors of an H200: each should have as many programs as the others

SEVERAL = 2  # rows that the kernel for several rows is tiled for at least


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is divided among programs."""

    outs: int  # weight rows of a program
    ins: int  # columns in one step of its loop
    parts: int = 1  # programs that share the same weight rows
    warps: int = 4
    stages: int = 4  # steps of the loop whose loads are under way together; 0 for the kernel for a single row
    together: int = 1  # programs that share the memory of a multiprocessor
    ahead: int = 0  # columns of the weight that a program prefetches into the L2 cache before it waits for its input


def tiling_of(rows: int, outs: int, ins: int, *, gated: bool = False, group: int = 0) -> Tiling:
    """Choose by measurement on an H200 or H100 (bench/results/gpu-notes.md); right for any shape, if not the fastest.

    `outs` are rows of the weight; `gated` says whether they are pairs of SwiGLU; `group` is 0 for a weight that is not
    quantised, else the columns that share a scale: those of int4 are a step on tensor cores, those of 8 bits hold one.
    """
    if group and rows == 1:
        return _quantised_tiling_of_one(outs, group, ins)
    if group:
        return _quantised_tiling(rows, outs, ins, group, gated=gated)
    if rows == 1:
        return _tiling_of_one(outs, ins, gated=gated)
    if outs >= 8192 and not gated:
        return Tiling(128, 128, 1, 8, 4 if rows <= 48 else 3)
    tiles = -(-outs // 64)
    parts = 1 if gated else max(1, min(4, ins // 512, -(-112 // tiles)))
    together = min(3, -(-tiles * parts // _PROGRAMS))
    if rows <= 16 and together == 1:
        return Tiling(64, 256, parts, 4, 3)
    return Tiling(64, 128, parts, 4, 5 if rows <= 48 else 4, together)


def _tiling_of_one(outs: int, ins: int, *, gated: bool) -> Tiling:
    if gated:
        return Tiling(4, 1024, 1, 2, 0)
    if outs > 4096:
        return Tiling(8, 1024, 1, 4, 0)
    if ins > 12_288:  # the loop is unrolled: more steps than about 12 take more registers than there are
        return Tiling(4, 4096, 1, 8, 0)
    if ins > 8192:
        return Tiling(4, 1024, 1, 2, 0)
    if outs <= 2048:
        return Tiling(4, 1024, 1, 2, 0) if ins <= 2048 else Tiling(8, 1024, 1, 4, 0)
    if ins <= 2048:
        return Tiling(4, 1024, 1, 4, 0)
    return Tiling(4, 1024, 1, 2, 0) if outs <= 3072 or ins > 4096 else Tiling(16, 512, 1, 4, 0)


def _quantised_tiling(rows: int, outs: int, ins: int, group: int, *, gated: bool) -> Tiling:
    """Choose for several rows, by measurement on an H200; int4 of more than 16 rows as its first kernel was fastest."""
    tiles, most = -(-outs // 64), 1 if gated else max(1, min(4, ins // 512))
    if group <= GROUP:  # int4, whose steps are groups
        if rows <= 16 and tiles >= _PROGRAMS:
            return Tiling(64, group, most, 4, 6, 3)
        return Tiling(64, group, min(most, 4 if tiles < _PROGRAMS else 2), 4, 5 if rows <= 32 else 4, 2)
    parts, step = min(most, -(-112 // tiles)), 256 if rows <= 32 and group % 256 == 0 else GROUP
    if rows <= 16 or gated:
        return Tiling(64, step, parts, 4, 4, 2)
    if parts > 1:
        return Tiling(64, GROUP, parts, 4, 6, 3)
    return Tiling(128, step, 1, 8, 4) if rows <= 32 else Tiling(64, step, 1, 4, 4, 2)


def _quantised_tiling_of_one(outs: int, group: int, ins: int) -> Tiling:
    """Choose by measurement on an H200. Steps of 8 bits lie in one group."""
    if group <= GROUP:  # int4, whose steps may have several groups
        return Tiling(8, 512, 1, 1, 0) if outs > 4096 else Tiling(4, 2048, 1, 4, 0)
    # Steps of 2,048 columns were 16 us quicker in an fp8 step, but int8 then spills registers with Triton 3.9.
    return Tiling(8, 1024 if group == ins else min(1024, group & -group), 1, 4, 0)


def fitted(tiling: Tiling, width: int, itemsize: int, shared: int, *, weight_bits: int = 16) -> Tiling:
    """Shrink a tensor-core tiling until its steps fit into `shared` bytes; `width` are the rows, padded.

    Steps of weights in 4 bits are groups, which keep their columns.
    """
    stages, ins = tiling.stages, tiling.ins
    room = (shared + _RESERVED) // tiling.together - _RESERVED - _SPARE
    while stages * ins * (tiling.outs * weight_bits // 8 + width * itemsize) > room:
        if stages > 2:
            stages -= 1
        elif ins > _LEAST_STEP and weight_bits > 4:
            ins //= 2
        else:
            raise ValueError(f"{shared} bytes of shared memory are too few for {tiling} and {width} rows")
    return replace(tiling, stages=stages, ins=ins)


def least_shared(rows: int) -> int:
    """Return the bytes of shared memory to which every tiling of so many rows can be shrunk."""
    return 2 * _LEAST_STEP * (_WIDEST + rows) * 2 + _SPARE


def stats_width(outs: int, ins: int, *, group: int = 0) -> int:
    """Return the columns of a tile of the statistics that `linear_out` writes; `group` is as for `tiling_of`."""
    return tiling_of(1, outs, ins, group=group).outs


def programs_of(rows: int, outs: int, ins: int, *, group: int = 0) -> int:
    """Return the number of programs of a product, as a `Handshake` counts them."""
    tiling = tiling_of(rows, outs, ins, group=group)
    return -(-outs // tiling.outs) * tiling.parts

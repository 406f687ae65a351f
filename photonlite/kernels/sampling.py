"""Sampling on the device: ids that the masks allow, bins of coordinates and sizes, and their probabilities.

```
logits over ids ────────── mask, decide, draw ─> id ─┐
       over coordinates ── draw ─> bin, mass ────────┼─> results [B, 7], whose first three columns are pending
       over sizes ──────── draw ─> bins, masses ─────┘   bins count only where the id is that of a coordinate or size
```

On CUDA greedy sampling is one launch. A row has one program for its hidden state, one for each distribution over
bins, and one for each tile of the vocabulary; every program leaves a few numbers, and the last one to arrive merges
them in the order of the tiles, so that results do not depend on which one that was. Comparisons are those of integers:
the bits of a float32, turned so that they ascend as the numbers do, with NaN above all. That makes ties exact, and
makes NaN win as it does in PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels import columns
from photonlite.kernels.reference import sampling as reference
from photonlite.kernels.reference.sampling import Logits, masked, unpack_bits, wide
from photonlite.kernels.triton_utils import arrival_counters, dependent_launch, power_of_2, tl, triton, use_triton

BLOCK = 1024  # ids of a program: some fifty programs for a vocabulary of 51200
LEFT = 4
"""int32 that each program leaves for the program that merges.

```
hidden state   finite
bins           bin, finite, mass
tile of ids    largest but for `end` as ordered bits, its id, largest of all, sum of exponentials
```
"""

_LEFT = tl.constexpr(LEFT)
_FORCED, _COORDINATE, _SIZE = (tl.constexpr(column) for column in (columns.FORCED, columns.COORDINATE, columns.SIZE))
_END, _TIES = tl.constexpr(columns.END), tl.constexpr(columns.TIES)
_ID, _BIN0, _BIN1 = (tl.constexpr(column) for column in (columns.ID, columns.BIN0, columns.BIN1))
_FINITE, _PROBABILITY = tl.constexpr(columns.FINITE), tl.constexpr(columns.PROBABILITY)
_MASS0, _MASS1 = tl.constexpr(columns.MASS0), tl.constexpr(columns.MASS1)
_PARAM_COLUMNS = tl.constexpr(columns.PARAM_COLUMNS)
_RESULT_COLUMNS = tl.constexpr(columns.RESULT_COLUMNS)
_PENDING_COLUMNS = tl.constexpr(columns.PENDING_COLUMNS)


def sample_tokens(
    logits: Logits,
    hidden: Tensor,  # [B, dim]: only finiteness is reported
    params: Tensor,  # int32 [B, PARAM_COLUMNS], contiguous
    masks: Tensor,  # bits, int32 [B, words]; not read where the id is forced
    results: Tensor,  # int32 [B, RESULT_COLUMNS], written
    pending: Tensor,  # the pending table, int32 [R, PENDING_COLUMNS], written
    rows: Tensor,  # row of that table for each, int32 [B] of any stride; of equal ones any may win
    *,
    sampled: bool,  # unless it is set, no row draws
) -> None:
    """Sample a token for each row; rows do not affect each other.

    An id that is not forced is that of the largest allowed logit, the first of equals. Where END is set, any other id
    counts as COORDINATE, with the probability of not ending. A bin is that of the largest logit; its mass is the
    probability of the bins within a radius. A row that draws chooses by its temperature, top-p and random numbers
    instead; probabilities and masses do not depend on them.
    """
    heads = [None if head is None else head.contiguous() for head in (logits.ids, logits.coordinate, logits.size)]
    double = any(head is not None and head.dtype == torch.float64 for head in (hidden, *heads))
    if sampled or double or not use_triton(hidden):
        return reference.sample_tokens(logits, hidden, params, masks, results, pending, rows, sampled=sampled)
    if not (results.is_contiguous() and pending.is_contiguous()):
        raise ValueError(f"strides {results.stride()} and {pending.stride()}: the kernel writes whole rows")
    count, dim = hidden.shape
    hidden = hidden.contiguous()
    vocab, coordinates, sizes = (0 if head is None else head.shape[-1] for head in heads)
    ids, coordinate, size = (hidden if head is None else head for head in heads)  # an unread pointer without a head
    tiles = -(-vocab // BLOCK)
    units = 1 + bool(coordinates) + 2 * bool(sizes) + tiles
    left = torch.empty(count, units, LEFT, dtype=torch.int32, device=hidden.device)
    _sample_kernel[(units, count)](
        ids, coordinate, size, hidden, params.contiguous(), masks.contiguous(),
        results, results.view(torch.float32), pending, rows, left,
        arrival_counters(hidden.device, count), masks.shape[1], rows.stride(0),
        logits.coordinate_radius, logits.size_radius,
        VOCAB=vocab, COORDINATES=coordinates, SIZES=sizes, DIM=dim,
        DIM_WIDTH=power_of_2(dim), COORDINATES_WIDTH=power_of_2(max(1, coordinates)),
        SIZES_WIDTH=power_of_2(max(1, sizes)), BLOCK=BLOCK, TILES=tiles, TILES_WIDTH=power_of_2(max(1, tiles)),
        num_warps=4, **dependent_launch(hidden),
    )  # fmt: skip


def penalize(logits: Tensor, seen: Tensor, params: Tensor) -> Tensor:
    """Apply each row's repetition penalty to the logits ``[B, vocab]`` of the ids in `seen`, bits as those of masks.

    A positive logit is divided by the penalty, and a negative one multiplied (Keskar et al., 2019, "CTRL", and
    transformers). The result is float32, or float64 of float64.
    """
    logits = wide(logits)
    penalty = params.view(torch.float32)[:, columns.PENALTY, None]
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(unpack_bits(seen, logits.shape[-1]), penalized, logits)


def score_ids(logits: Tensor, masks: Tensor, ids: Tensor, scores: Tensor) -> None:
    """Write the probabilities of ids, int32 ``[B, n]``, at temperature 1 and among those that the masks allow.

    `scores`, float32 ``[B, n]``, become 0 for an id that is not allowed and are undefined for one below 0.
    """
    probabilities = masked(wide(logits), masks).softmax(dim=-1)
    scores.copy_(probabilities.gather(1, ids.clamp(min=0).long()))


@triton.jit
def _ordered(value: tl.tensor) -> tl.tensor:
    """Turn the bits of float32 numbers into int32 that ascend as they do: -0 equals 0, NaN is above infinity."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    turned = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(value == value, turned, 0x7FFFFFFF)


@triton.jit
def _unordered(turned: tl.tensor) -> tl.tensor:
    return (turned ^ ((turned >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _first(key: tl.tensor, index: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the largest key, and the smallest index that has it."""
    best = tl.max(key, axis=0)
    return best, tl.min(tl.where(key == best, index, 0x7FFFFFFF), axis=0)


@triton.jit
def _fold_hidden(hidden: tl.tensor, place: tl.tensor, DIM: tl.constexpr, DIM_WIDTH: tl.constexpr) -> None:
    """Leave whether a hidden state is finite."""
    d = tl.arange(0, DIM_WIDTH)
    value = tl.load(hidden + d, mask=d < DIM, other=0.0).to(tl.float32)
    tl.store(place, tl.min((tl.abs(value) < float("inf")).to(tl.int32), axis=0))


@triton.jit
def _fold_bins(logits: tl.tensor, place: tl.tensor, radius: tl.tensor, BINS: tl.constexpr, WIDTH: tl.constexpr) -> None:
    """Leave the bin of the largest logit, whether that is finite, and the probability mass around it."""
    index = tl.arange(0, WIDTH)
    value = tl.load(logits + index, mask=index < BINS, other=float("-inf")).to(tl.float32)
    best, chosen = _first(_ordered(value), index)
    largest = _unordered(best)
    share = tl.exp(value - largest)
    near = tl.where(tl.abs(index - chosen).to(tl.float32) <= radius, share, 0.0)
    mass = tl.minimum(tl.sum(near, axis=0) / tl.sum(share, axis=0), 1.0)
    tl.store(place, chosen)
    tl.store(place + 1, (tl.abs(largest) < float("inf")).to(tl.int32))
    tl.store(place + 2, mass.to(tl.int32, bitcast=True))


@triton.jit
def _fold_ids(
    logits: tl.tensor, masks: tl.tensor, settings: tl.tensor, place: tl.tensor, tile: tl.tensor,
    DECIDES: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Leave the largest allowed logit of a tile and its id, without `end`; with it, what a softmax takes."""
    index = tile * BLOCK + tl.arange(0, BLOCK)
    inside = index < VOCAB
    value = tl.load(logits + index, mask=inside, other=float("-inf")).to(tl.float32)
    word = tl.load(masks + index // 32, mask=inside, other=0)
    value = tl.where(((word >> (index % 32)) & 1) != 0, value, float("-inf"))
    others = value
    if DECIDES:
        others = tl.where(index == tl.load(settings + _END), float("-inf"), value)
        largest = tl.max(value, axis=0)
        share = tl.exp(value - tl.where(largest == float("-inf"), 0.0, largest))
        tl.store(place + 2, largest.to(tl.int32, bitcast=True))
        tl.store(place + 3, tl.sum(share, axis=0).to(tl.int32, bitcast=True))
    best, chosen = _first(_ordered(others), index)
    tl.store(place, best)
    tl.store(place + 1, chosen)


@triton.jit
def _merge_ids(
    logits: tl.tensor, masks: tl.tensor, settings: tl.tensor, places: tl.tensor,
    DECIDES: tl.constexpr, TILES: tl.constexpr, TILES_WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return a row's id, whether its largest logit is finite, and the probability of going on where it does, else 1."""
    tile = tl.arange(0, TILES_WIDTH)
    there = tile < TILES
    key = tl.load(places + tile * _LEFT, mask=there, other=-0x80000000, cache_modifier=".cg")
    index = tl.load(places + tile * _LEFT + 1, mask=there, other=0x7FFFFFFF, cache_modifier=".cg")
    best, chosen = _first(key, index)
    largest = _unordered(best)
    fine = tl.abs(largest) < float("inf")
    probability = 1.0
    if DECIDES:
        end, coordinate = tl.load(settings + _END), tl.load(settings + _COORDINATE)
        column = tl.maximum(end, 0)
        allowed = (tl.load(masks + column // 32) >> (column % 32)) & 1
        at_end = tl.where((end >= 0) & (allowed != 0), tl.load(logits + column).to(tl.float32), float("-inf"))
        ends = (at_end > largest) | ((at_end == largest) & (chosen >= tl.load(settings + _TIES)))
        highest = tl.where(at_end > largest, at_end, largest)
        fine = (tl.abs(highest) < float("inf")) & (at_end == at_end)
        bits = tl.load(places + tile * _LEFT + 2, mask=there, other=0, cache_modifier=".cg")
        shares = tl.load(places + tile * _LEFT + 3, mask=there, other=0, cache_modifier=".cg")
        weight = tl.exp(bits.to(tl.float32, bitcast=True) - highest)
        total = tl.sum(tl.where(there, weight * shares.to(tl.float32, bitcast=True), 0.0), axis=0)
        goes_on = (end >= 0) & (ends == 0)
        probability = tl.where(goes_on, 1.0 - tl.exp(at_end - highest) / total, 1.0)
        chosen = tl.where(goes_on & (coordinate >= 0), coordinate, tl.where(ends, end, chosen))
    return chosen, fine, probability


@triton.jit
def _sample_kernel(
    ids: tl.tensor, coordinate: tl.tensor, size: tl.tensor, hidden: tl.tensor, settings: tl.tensor, masks: tl.tensor,
    results: tl.tensor, fractions: tl.tensor, pending: tl.tensor, pending_rows: tl.tensor, left: tl.tensor,
    counters: tl.tensor, words: tl.tensor, rows_stride: tl.tensor, coordinate_radius: tl.tensor, size_radius: tl.tensor,
    VOCAB: tl.constexpr, COORDINATES: tl.constexpr, SIZES: tl.constexpr, DIM: tl.constexpr, DIM_WIDTH: tl.constexpr,
    COORDINATES_WIDTH: tl.constexpr, SIZES_WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
    TILES_WIDTH: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Fold what is unit `program_id(0)` of row `program_id(1)`: hidden state, bins, ids; the last to arrive merges."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    first_size: tl.constexpr = 1 + (COORDINATES > 0)
    first_tile: tl.constexpr = first_size + 2 * (SIZES > 0)
    decides: tl.constexpr = first_tile > 1
    unit, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    ids, masks, settings = ids + row * VOCAB, masks + row * words, settings + row * _PARAM_COLUMNS
    places = left + row * ((first_tile + TILES) * _LEFT)
    place = places + unit * _LEFT
    if unit == 0:
        _fold_hidden(hidden + row * DIM, place, DIM, DIM_WIDTH)
    # A branch that a constant excludes is not compiled; with `and` it would be.
    if COORDINATES > 0:  # noqa: SIM102
        if unit == 1:
            _fold_bins(coordinate + row * COORDINATES, place, coordinate_radius, COORDINATES, COORDINATES_WIDTH)
    if SIZES > 0:  # noqa: SIM102
        if (unit >= first_size) & (unit < first_tile):
            logits = size + (row * 2 + unit - first_size) * SIZES
            _fold_bins(logits, place, size_radius, SIZES, SIZES_WIDTH)
    if TILES > 0:  # noqa: SIM102
        if unit >= first_tile:
            _fold_ids(ids, masks, settings, place, unit - first_tile, decides, VOCAB, BLOCK)
    tl.debug_barrier()  # what this program leaves is there before it counts itself in
    if tl.atomic_add(counters + row, 1, sem="acq_rel", scope="gpu") == first_tile + TILES - 1:
        target = pending + tl.load(pending_rows + row * rows_stride).to(tl.int64) * _PENDING_COLUMNS
        _finish(
            ids, masks, settings, places, results + row * _RESULT_COLUMNS, fractions + row * _RESULT_COLUMNS, target,
            COORDINATES, SIZES, first_size, first_tile, decides, TILES, TILES_WIDTH,
        )  # fmt: skip
        tl.store(counters + row, 0)


@triton.jit
def _finish(
    logits: tl.tensor, masks: tl.tensor, settings: tl.tensor, places: tl.tensor, result: tl.tensor,
    fractions: tl.tensor, pending: tl.tensor,
    COORDINATES: tl.constexpr, SIZES: tl.constexpr, FIRST_SIZE: tl.constexpr, FIRST_TILE: tl.constexpr,
    DECIDES: tl.constexpr, TILES: tl.constexpr, TILES_WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write a row's result and its row of the pending table."""
    chosen = tl.load(settings + _FORCED)
    finite = tl.load(places, cache_modifier=".cg") != 0
    probability = 1.0
    if TILES > 0:
        tiles = places + FIRST_TILE * _LEFT
        free = chosen < 0
        found, fine, decided = _merge_ids(logits, masks, settings, tiles, DECIDES, TILES, TILES_WIDTH)
        chosen, probability = tl.where(free, found, chosen), tl.where(free, decided, 1.0)
        finite = finite & (fine | (free == 0))
    bin0, bin1, mass0, mass1 = -1, -1, 0.0, 0.0
    if COORDINATES > 0:
        here = chosen == tl.load(settings + _COORDINATE)
        bin0, mass0, fine = _left_bin(places + _LEFT, here, bin0, mass0)
        finite = finite & fine
    if SIZES > 0:
        here = chosen == tl.load(settings + _SIZE)
        bin0, mass0, fine = _left_bin(places + FIRST_SIZE * _LEFT, here, bin0, mass0)
        bin1, mass1, also = _left_bin(places + FIRST_SIZE * _LEFT + _LEFT, here, bin1, mass1)
        finite = finite & fine & also
    tl.store(pending + _ID, chosen)
    tl.store(pending + _BIN0, bin0)
    tl.store(pending + _BIN1, bin1)
    tl.store(result + _ID, chosen)
    tl.store(result + _BIN0, bin0)
    tl.store(result + _BIN1, bin1)
    tl.store(result + _FINITE, finite.to(tl.int32))
    tl.store(fractions + _PROBABILITY, probability)
    tl.store(fractions + _MASS0, mass0)
    tl.store(fractions + _MASS1, mass1)


@triton.jit
def _left_bin(
    place: tl.tensor, here: tl.tensor, otherwise: tl.tensor, mass: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return what a program left of a bin if it counts: the bin, its mass, and whether it is finite."""
    chosen = tl.load(place, cache_modifier=".cg")
    fine = tl.load(place + 1, cache_modifier=".cg") != 0
    found = tl.load(place + 2, cache_modifier=".cg").to(tl.float32, bitcast=True)
    return tl.where(here, chosen, otherwise), tl.where(here, found, mass), fine | (here == 0)

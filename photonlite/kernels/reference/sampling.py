"""Sampling in PyTorch, and the only code for rows that draw; see `kernels.sampling`.

Tensor code of fixed shapes that never waits for the device, so that a CUDA graph can hold it. Choices follow each row's
settings. Probabilities that end up in scores do not: they are the model's own, at temperature 1 and over the whole
distribution. Arithmetic is float32, or float64 where the heads give that.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels import columns
from photonlite.kernels.columns import END, TEMPERATURE, U0


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of some rows; None where a head was not read."""

    ids: Tensor | None = None  # [B, vocab]; if it is the only one, no row decides whether another object follows
    coordinate: Tensor | None = None  # [B, bins]
    size: Tensor | None = None  # [B, 2, bins], width first
    coordinate_radius: float = 0.0  # bins on either side of the chosen one that count towards a coordinate's mass
    size_radius: float = 0.0  # the same for a width and a height


def sample_tokens(
    logits: Logits, hidden: Tensor, params: Tensor, masks: Tensor, results: Tensor, pending: Tensor, rows: Tensor,
    *, sampled: bool,
) -> None:  # fmt: skip
    ids = params[:, columns.FORCED].long()
    probability = torch.ones_like(ids, dtype=torch.float32)
    # Checked even where no head is read: a prompt may run for its keys and values alone, which others build on.
    finite = hidden.isfinite().all(dim=-1)
    if logits.ids is not None:
        free = ids < 0
        open_ids = masked(wide(logits.ids), masks)
        if logits.coordinate is not None or logits.size is not None:
            chosen, largest, decided = _decide(open_ids, params, sampled=sampled)
            probability = torch.where(free, decided, probability)
        else:
            picked = _pick(open_ids[:, None], params, _lanes(params, U0), sampled=sampled)
            chosen, largest = (one[:, 0] for one in picked)
        ids = torch.where(free, chosen, ids)
        finite = finite & (largest.isfinite() | ~free)
    bins = torch.full_like(ids, -1)[:, None].expand(-1, 2)
    masses = torch.zeros_like(probability)[:, None].expand(-1, 2)
    into = bins, masses, finite
    if logits.coordinate is not None:
        found = _pick_bins(logits.coordinate[:, None], logits.coordinate_radius, params, sampled=sampled)
        into = _put(ids == params[:, columns.COORDINATE], found, into)
    if logits.size is not None:
        found = _pick_bins(logits.size, logits.size_radius, params, sampled=sampled)
        into = _put(ids == params[:, columns.SIZE], found, into)
    bins, masses, finite = into
    whole = torch.cat((ids[:, None], bins, finite[:, None]), dim=1).int()
    fractions = torch.cat((probability[:, None], masses), dim=1).float()
    results.copy_(torch.cat((whole, fractions.view(torch.int32)), dim=1))
    pending.index_copy_(0, rows.long(), whole[:, : columns.PENDING_COLUMNS])


def wide(logits: Tensor) -> Tensor:
    """Convert logits to the type that sampling computes in: at least float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def masked(logits: Tensor, masks: Tensor) -> Tensor:
    """Set the logits ``[B, vocab]`` of ids that are not allowed to minus infinity."""
    return torch.where(unpack_bits(masks, logits.shape[-1]), logits, -math.inf)


def unpack_bits(masks: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of rows of words, int32 ``[B, words]``, as bool ``[B, count]``."""
    places = torch.arange(torch.iinfo(masks.dtype).bits, dtype=masks.dtype, device=masks.device)
    bit = torch.ones_like(places) << places
    return (masks[..., None] & bit).ne(0).flatten(1)[:, :count]


def _decide(masked: Tensor, params: Tensor, *, sampled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Choose ids of ``[B, vocab]``; also return their largest logits, and the probability of going on, else 1."""
    end, coordinate, ties = params[:, END].long(), params[:, columns.COORDINATE].long(), params[:, columns.TIES]
    decides, column = end >= 0, end.clamp(min=0)[:, None]
    at_column = masked.gather(1, column)
    at_end = torch.where(decides, at_column[:, 0], -math.inf)
    others = masked.scatter(1, column, torch.where(decides[:, None], -math.inf, at_column))
    best, ids = others.max(dim=-1)
    ends = (at_end > best) | ((at_end == best) & (ids >= ties))
    largest = torch.maximum(at_end, best)
    if sampled:
        # Sorting keeps equals in their order: it begins behind `end`, at `end` or at 0, as ties say.
        first = torch.where(ties > end, end + 1, torch.where(ties == end, 0, end))
        turned = (torch.arange(masked.shape[-1], device=masked.device) + first[:, None]) % masked.shape[-1]
        place = _draw(masked.gather(1, turned)[:, None], largest[:, None], params, _lanes(params, U0))
        drawn, draws = turned.gather(1, place)[:, 0], params.view(torch.float32)[:, TEMPERATURE] > 0
        ids, ends = torch.where(draws, drawn, ids), torch.where(draws, drawn == end, ends)
    goes_on = decides & ~ends
    ids = torch.where(goes_on & (coordinate >= 0), coordinate, torch.where(ends, end, ids))
    probability = 1 - masked.softmax(dim=-1).gather(1, column)[:, 0]
    return ids, largest, torch.where(goes_on, probability, 1.0)


def _pick_bins(head: Tensor, radius: float, params: Tensor, *, sampled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Choose bins of ``[B, n, bins]``; also return the probability mass around each, and whether logits are finite."""
    logits = wide(head)
    count, width = logits.shape[1:]
    index, largest = _pick(logits, params, _lanes(params, columns.U1, count), sampled=sampled)
    near = (torch.arange(width, device=logits.device) - index[..., None]).abs() <= radius
    mass = (logits.softmax(dim=-1) * near).sum(dim=-1).clamp(max=1.0)
    return index, mass, largest.isfinite()


def _put(
    here: Tensor, found: tuple[Tensor, Tensor, Tensor], into: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Put bins, masses and finiteness of one or two columns into the rows where `here` ``[B]`` is true."""
    (index, mass, fine), (bins, masses, finite) = found, into
    missing = 2 - index.shape[1]
    bins = torch.where(here[:, None], functional.pad(index, (0, missing), value=-1), bins)
    masses = torch.where(here[:, None], functional.pad(mass, (0, missing)), masses)
    return bins, masses, finite & (fine.all(dim=-1) | ~here)


def _lanes(params: Tensor, first: int, count: int = 1) -> Tensor:
    """Return each row's float32 params in some columns, ``[B, count, 1]``."""
    return params.view(torch.float32)[:, first : first + count, None]


def _pick(logits: Tensor, params: Tensor, uniform: Tensor, *, sampled: bool) -> tuple[Tensor, Tensor]:
    """Choose from ``[B, n, N]``, at temperature 0 the first largest; return also the largest, NaN where any is."""
    largest, index = logits.max(dim=-1)
    if sampled:
        draws = params.view(torch.float32)[:, TEMPERATURE, None] > 0
        index = torch.where(draws, _draw(logits, largest, params, uniform), index)
    return index, largest


def _draw(logits: Tensor, largest: Tensor, params: Tensor, uniform: Tensor) -> Tensor:
    """Draw from the last dimension of ``[B, n, N]`` by the settings of each row, whose temperature is above 0.

    The softmax of logits / temperature, of the first top-k entries in descending order where a row has that limit; an
    entry is dropped when those before it already hold more than top-p. One of the rest is drawn by the inverse of their
    cumulative distribution from `uniform` in [0, 1), ``[B, n, 1]``. Return int64 ``[B, n]``. Moondream's reference has
    top-p alone; transformers applies top-k first, as here.
    """
    temperature, top_p = _lanes(params, TEMPERATURE), _lanes(params, columns.TOP_P)
    # The largest becomes 0 first: no temperature, however small, turns it into infinity, or 0 / 0 into a NaN.
    shifted = (logits - largest[..., None]) / temperature.clamp(min=torch.finfo(torch.float32).tiny)
    probability, order = shifted.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    top_k = params[:, columns.TOP_K, None, None]
    first = probability.masked_fill(torch.arange(probability.shape[-1], device=params.device) >= top_k, 0.0)
    probability = torch.where(top_k > 0, first / first.sum(dim=-1, keepdim=True), probability)
    before = probability.cumsum(dim=-1) - probability
    kept = probability.masked_fill(before > top_p, 0.0)
    mass = kept.cumsum(dim=-1)
    # A parallel sum need not be monotone: mask zero-probability entries explicitly; fall back to the first entry.
    hit = (mass > uniform * mass[..., -1:]) & (kept > 0)
    place = hit.to(torch.uint8).argmax(dim=-1, keepdim=True)
    return order.gather(-1, place)[..., 0]

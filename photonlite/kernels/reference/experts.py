"""A mixture of experts in PyTorch; see `kernels.experts`.

Pairs of a row and one of its experts are sorted by expert, and each product is one for all pairs. On a card all shapes
follow from the number of rows, so that nothing waits for the device: where PyTorch has no product of segments for it,
each expert gets room for all rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference.attention import FP8, indexable


@dataclass(frozen=True, slots=True)
class ExpertWeight:
    """Matrices of E experts, ``[E, N, K]``; e4m3 ones have a float32 scale for each row, ``[E, N]``."""

    values: Tensor
    scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """Which of E experts T rows go to, K each; a pair is row * K + rank."""

    order: Tensor  # int32 [T K]: pairs sorted by expert
    starts: Tensor  # int32 [E + 1]: where the pairs of each expert begin in `order`
    shares: Tensor  # [T, K]: of each expert in its row's result

    @property
    def rank_count(self) -> int:
        return self.shares.shape[1]


def route(logits: Tensor, count: int) -> Routes:
    experts = logits.shape[1]
    best, ids = logits.sort(dim=1, descending=True, stable=True)
    wide = torch.promote_types(logits.dtype, torch.float32)
    shares = best[:, :count].to(wide).softmax(dim=1).to(logits.dtype)
    chosen, order = ids[:, :count].flatten().sort(stable=True)
    starts = torch.searchsorted(chosen, torch.arange(experts + 1, device=logits.device))
    return Routes(order.int(), starts.int(), shares)


def experts_in(x: Tensor, routes: Routes, weight: ExpertWeight) -> Tensor:
    rows = x[routes.order.long() // routes.rank_count]
    return gate(expert_product(rows, routes, weight))


def gate(product: Tensor) -> Tensor:
    """Return ``gelu(h) (g + 1)`` of the halves ``[P, N]`` of rows ``[P, 2 N]``."""
    inside, factor = product.chunk(2, dim=1)
    return functional.gelu(inside) * (factor + 1)


def experts_out(inside: Tensor, routes: Routes, weight: ExpertWeight) -> Tensor:
    return join(expert_product(inside, routes, weight), routes)


def join(out: Tensor, routes: Routes) -> Tensor:
    """Return the shares ``[T, K, N]`` of rows in what experts make of the sorted pairs, ``[T K, N]``."""
    pairs = routes.order.long()
    out = out * routes.shares.flatten()[pairs, None]
    return torch.empty_like(out).index_copy_(0, pairs, out).view(*routes.shares.shape, -1)


def add_and_norm(
    x: Tensor, parts: Tensor | None, shift: Tensor | None, norm: tuple[Tensor, Tensor, float] | None
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    if parts is not None or shift is not None:
        total = x.to(wide) if parts is None else x.to(wide) + parts.to(wide).sum(dim=1)
        x.copy_(total if shift is None else total + shift)
    return x if norm is None else functional.layer_norm(x, x.shape[1:], *norm)


def expert_product(rows: Tensor, routes: Routes, weight: ExpertWeight) -> Tensor:
    """Multiply the row of each sorted pair with the matrix of its expert: ``[P, K]`` to ``[P, N]``."""
    experts, starts = len(weight.values), routes.starts.long()
    pair = torch.arange(len(rows), device=rows.device)
    expert = torch.searchsorted(starts[1:], pair, right=True)
    if 3 * len(rows) <= experts:  # a copied matrix is read, written and read again
        matrices = indexable(weight.values)[expert].view(weight.values.dtype).to(rows.dtype)
        out = torch.einsum("pk,pnk->pn", rows, matrices)
    elif has_segments(rows, weight):
        out = functional.grouped_mm(rows, weight.values.to(rows.dtype).mT, offs=routes.starts[1:])
    else:
        place = pair - starts[expert]
        tokens = len(rows) // routes.rank_count  # a row goes to an expert once at most
        capacity = tokens if rows.is_cuda else int(starts.diff().max())
        padded = rows.new_zeros(experts, capacity, rows.shape[1])
        padded[expert, place] = rows
        out = torch.bmm(padded, weight.values.to(rows.dtype).mT)[expert, place]
    if weight.scale is None:
        return out
    return (out * weight.scale[expert]).to(rows.dtype)


def has_segments(rows: Tensor, weight: ExpertWeight) -> bool:
    """Return whether PyTorch multiplies segments of rows without waiting for the device to tell where they end."""
    known = hasattr(functional, "grouped_mm") and rows.is_cuda and rows.dtype == torch.bfloat16
    aligned = not any(size % 8 for size in weight.values.shape[1:])
    return known and aligned and torch.cuda.get_device_capability(rows.device)[0] in (9, 10)


def quantise_experts(weight: Tensor) -> ExpertWeight:
    """Return matrices ``[E, N, K]`` in e4m3, each row scaled so that its largest magnitude is 448."""
    scale = (weight.float().abs().amax(dim=2) / torch.finfo(FP8).max).clamp(min=1e-12)
    return ExpertWeight((weight.float() / scale[..., None]).to(FP8), scale)

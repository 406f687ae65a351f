"""Rounding to int4 that knows the inputs: what rounding one column costs is made up for by those behind it.

Of a group of columns with inputs x, the error ``sum_x |(W - Q) x|^2`` is a quadratic form with the matrix
``H = sum_x x x^T``. Columns are rounded one after the other, and each time the others take what lessens the form most
(Frantar et al., 2022, "GPTQ"). That is done within groups: H is then small, and groups do not wait for each other.
Columns with the largest inputs come first, while others can still make up for them; and of some ranges of numbers each
group takes the one whose form is least in the end.
"""

import torch
from torch import Tensor

from photonlite.kernels.reference.quantised import QuantisedWeight, better_groups, pack_codes, quantise_groups

_DAMPING = 0.02  # share of the mean of the diagonal that is added to it: columns without inputs would be free
_WIDTHS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of what a group's numbers span


def quantise_for(weight: Tensor, moments: Tensor) -> QuantisedWeight:
    """Round ``[N, K]`` to int4 for inputs whose second moments are ``[G, g, g]``, up to a factor."""
    wide, moments = weight.float(), moments.to(weight.device, torch.float32)
    order = moments.diagonal(dim1=1, dim2=2).argsort(dim=1, descending=True)  # [G, g]
    sorted_rows = moments.take_along_dim(order[:, :, None], dim=1)
    factors = _factors(sorted_rows.take_along_dim(order[:, None, :], dim=2))
    grouped = wide.reshape(len(wide), *order.shape).take_along_dim(order[None], dim=2)
    best: list[Tensor] = []  # error, codes, scale, shift
    for width in _WIDTHS:
        plain = quantise_groups(wide, (width,))
        assert plain.shift is not None
        error, codes = _compensate(grouped, plain.scale.float(), plain.shift.float(), factors)
        best = better_groups(best, [error, codes, plain.scale, plain.shift])
    codes = best[1].take_along_dim(order.argsort(dim=1)[None], dim=2)
    return QuantisedWeight(pack_codes(codes.to(torch.uint8)), best[2], best[3])


def _compensate(grouped: Tensor, step: Tensor, shift: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Round ``[N, G, g]`` column by column; return the value of each group's form, and the codes."""
    rest, codes = grouped.clone(), torch.empty_like(grouped)
    total = torch.zeros_like(step)
    for column in range(rest.shape[2]):
        code = ((rest[:, :, column] - shift) / step).round_().clamp_(-8, 7)
        error = (rest[:, :, column] - (code * step + shift)) / factors[:, column, column]
        rest[:, :, column:] -= error[:, :, None] * factors[:, column, column:]
        codes[:, :, column] = code + 8
        total += error.square()
    return total, codes


def _factors(moments: Tensor) -> Tensor:
    """Return upper triangular U with ``U^T U`` the inverse of each damped matrix."""
    diagonal = moments.diagonal(dim1=1, dim2=2)
    damping = _DAMPING * diagonal.mean(dim=1, keepdim=True) + torch.finfo(torch.float32).tiny
    damped = moments + torch.diag_embed(damping.clamp_min(1e-6).expand_as(diagonal))
    factors: Tensor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    return factors

"""Rounding to int4 that knows the inputs: what rounding one column costs is made up for by those behind it.

Of inputs x, the error ``sum_x |(W - Q) x|^2`` is a quadratic form with the matrix ``H = sum_x x x^T``. Columns are
rounded one after the other, and each time the others take what lessens the form most (Frantar et al., 2022, "GPTQ").
Where H is known within groups of columns alone, groups do not make up for each other. In a group columns with the
largest inputs come first, while others can still make up for them; and of some ranges of numbers each row takes the one
whose form is least in the end.
"""

import torch
from torch import Tensor

from photonlite.kernels.reference.quantised import QuantisedWeight, group_of, pack_codes, quantise_groups

_DAMPING = 0.02  # share of the mean of the diagonal that is added to it: columns without inputs would be free
_BLOCK = 32  # columns
_WIDTHS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of what a group's numbers span


def quantise_for(weight: Tensor, moments: Tensor) -> QuantisedWeight:
    """Round ``[N, K]`` to int4 for inputs whose second moments are ``[K, K]``, or ``[G, g, g]`` within groups.

    Moments may be those of several inputs, up to a factor. ValueError where no group divides the columns.
    """
    rows, columns = weight.shape
    if (size := group_of(columns)) is None:
        raise ValueError(f"no group of int4 divides {columns} columns")
    moments, whole = moments.to(weight.device, torch.float32), moments.dim() == 2
    strength = moments.diagonal().view(-1, size) if whole else moments.diagonal(dim1=1, dim2=2)
    order = strength.argsort(dim=1, descending=True)  # [G, g]
    places = (order + torch.arange(0, columns, size, device=order.device)[:, None]).flatten()
    rest = weight.float()[:, places]
    if whole:
        factors = _factors(moments[places][:, places])
    else:
        ordered = moments.take_along_dim(order[:, :, None], dim=1).take_along_dim(order[:, None, :], dim=2)
        factors = _factors(ordered)
    codes = torch.empty(rows, *order.shape, dtype=torch.uint8, device=rest.device)
    scales, shifts = [], []
    for group, begin in enumerate(range(0, columns, size)):
        end = begin + size
        within = factors[begin:end, begin:end] if whole else factors[group]
        own, scale, shift, errors = _round_group(rest[:, begin:end], within)
        codes[:, group] = own.take_along_dim(order[group].argsort()[None], dim=1)
        scales.append(scale)
        shifts.append(shift)
        if whole:
            rest[:, end:] -= errors @ factors[begin:end, end:]
    return QuantisedWeight(pack_codes(codes), torch.cat(scales, dim=1), torch.cat(shifts, dim=1))


def _round_group(group: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Round ``[N, g]`` column by column: codes, scale and shift ``[N, 1]``, and what others are to make up for."""
    plain = [quantise_groups(group, (width,)) for width in _WIDTHS]
    scales = torch.stack([one.scale for one in plain])  # [W, N, 1]
    shifts = torch.stack([one.shift for one in plain if one.shift is not None])
    step, shift = scales.float()[..., 0], shifts.float()[..., 0]
    rest = group.expand(len(plain), -1, -1).clone()  # [W, N, g]
    codes, errors = torch.empty_like(rest), torch.empty_like(rest)
    for begin in range(0, rest.shape[2], _BLOCK):  # columns behind a block make up for all of it at once
        end = begin + _BLOCK
        for column in range(begin, min(end, rest.shape[2])):
            code = ((rest[..., column] - shift) / step).round_().clamp_(-8, 7)
            error = (rest[..., column] - (code * step + shift)) / factors[column, column]
            rest[..., column:end] -= error[..., None] * factors[column, column:end]
            codes[..., column], errors[..., column] = code + 8, error
        rest[..., end:] -= errors[..., begin:end] @ factors[begin:end, end:]
    best = errors.square().sum(dim=2).argmin(dim=0)[None, :, None]  # the form's value, by row
    own, scale, offset, left = (one.take_along_dim(best, dim=0)[0] for one in (codes, scales, shifts, errors))
    return own.to(torch.uint8), scale, offset, left


def _factors(moments: Tensor) -> Tensor:
    """Return upper triangular U with ``U^T U`` the inverse of each damped matrix ``[..., n, n]``."""
    diagonal = moments.diagonal(dim1=-2, dim2=-1)
    damping = _DAMPING * diagonal.mean(dim=-1, keepdim=True) + torch.finfo(torch.float32).tiny
    damped = moments + torch.diag_embed(damping.clamp_min(1e-6).expand_as(diagonal))
    factors: Tensor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    return factors

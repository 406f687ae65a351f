"""Rounding to int4 that knows the inputs: what rounding one column costs is made up for by those behind it.

Of a group of columns with inputs x, the error ``sum_x |(W - Q) x|^2`` is a quadratic form with the matrix
``H = sum_x x x^T``. Columns are rounded one after the other, and each time the others take what lessens the form most
(Frantar et al., 2022, "GPTQ"). That is done within groups: H is then small, and groups do not wait for each other.
"""

import torch
from torch import Tensor

from photonlite.kernels.reference.quantised import QuantisedWeight, pack_codes, quantise

_DAMPING = 0.02  # share of the mean of the diagonal that is added to it: columns without inputs would be free


def quantise_for(weight: Tensor, moments: Tensor) -> QuantisedWeight:
    """Round ``[N, K]`` to int4 for inputs whose second moments are ``[G, g, g]``, up to a factor."""
    plain = quantise(weight, "int4")
    step, shift = plain.scale.float(), plain.shift
    assert shift is not None
    shift, groups = shift.float(), moments.shape[0]
    rest = weight.float().reshape(len(weight), groups, -1).clone()  # [N, G, g]
    factors = _factors(moments.to(rest.device, torch.float32))
    codes = torch.empty_like(rest)
    for column in range(rest.shape[2]):
        code = ((rest[:, :, column] - shift) / step).round_().clamp_(-8, 7)
        error = (rest[:, :, column] - (code * step + shift)) / factors[:, column, column]
        rest[:, :, column:] -= error[:, :, None] * factors[:, column, column:]
        codes[:, :, column] = code + 8
    return QuantisedWeight(pack_codes(codes.to(torch.uint8)), plain.scale, plain.shift)


def _factors(moments: Tensor) -> Tensor:
    """Return upper triangular U with ``U^T U`` the inverse of each damped matrix."""
    diagonal = moments.diagonal(dim1=1, dim2=2)
    damping = _DAMPING * diagonal.mean(dim=1, keepdim=True) + torch.finfo(torch.float32).tiny
    damped = moments + torch.diag_embed(damping.clamp_min(1e-6).expand_as(diagonal))
    factors: Tensor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    return factors

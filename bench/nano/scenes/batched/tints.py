"""How the colours of sprites vary: hue, saturation, contrast, light."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

_HUE = math.radians(8)
_LUMA = (0.299, 0.587, 0.114)

Uniform = Callable[[tuple[int, ...], float, float, torch.device], Tensor]


def tints(steady: Tensor, uniform: Uniform) -> Tensor:
    """Draw a map of colours for every object, from premultiplied red, green, blue, alpha to red, green, blue.

    The hue turns around the grey axis (Rodrigues' formula). `steady`: whether an object keeps its hue, bool [B, N].
    Returns [B, N, 3, 4].
    """
    shape, device = tuple(steady.shape), steady.device
    angle = uniform(shape, -_HUE, _HUE, device) * ~steady
    cos, third, skew = angle.cos(), (1 - angle.cos()) / 3, angle.sin() / math.sqrt(3)
    own, right, left = cos + third, third - skew, third + skew
    hue = torch.stack((own, right, left, left, own, right, right, left, own), -1).view(*shape, 3, 3)
    saturation = uniform((*shape, 1, 1), 0.75, 1.25, device)
    luma = sum(weight * hue[..., row, None, :] for row, weight in enumerate(_LUMA))  # the grey after the turn
    contrast = uniform((*shape, 1, 1), 0.85, 1.15, device)
    gain = uniform((*shape, 1, 1), 0.75, 1.2, device) * uniform((*shape, 3, 1), 0.92, 1.08, device)
    matrix = (luma + (hue - luma) * saturation) * contrast
    return torch.cat((matrix, (0.5 - 0.5 * contrast).expand(*shape, 3, 1)), -1) * gain

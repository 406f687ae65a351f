"""What cameras and files do to a picture, on the device: blur, low resolution, noise, light, JPEG."""

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional

_SMALLEST = 144  # pixels of a side before JPEG: a picture of 160 pixels, squeezed
_LUMA = (
    "16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62 "
    "18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99"
)
_CHROMA = (
    "17 18 24 47 99 99 99 99 18 21 26 66 99 99 99 99 24 26 56 99 99 99 99 99 47 66 99 99 99 99 99 99 " + "99 " * 32
)
"""Example quantisation tables of the JPEG standard (ITU-T T.81, Annex K)."""


@functools.cache
def _steps(table: str, device: torch.device) -> Tensor:
    return torch.tensor([float(v) for v in table.split()], device=device).view(1, 1, 1, 8, 1, 8)


@functools.cache
def _blur_kernel(device: torch.device) -> Tensor:
    taps = torch.tensor([1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0], device=device) / 64
    return torch.outer(taps, taps).expand(3, 1, 7, 7).contiguous()


@functools.cache
def _dct_matrix(device: torch.device) -> Tensor:
    k = torch.arange(8, device=device, dtype=torch.float32)
    basis = torch.cos(math.pi * (2 * k[None, :] + 1) * k[:, None] / 16) / 2
    basis[0] /= math.sqrt(2)
    return basis


def jpeg(images: Tensor, quality: Tensor) -> Tensor:
    """Quantise 8x8 DCT blocks as a JPEG encoder does, chroma at half resolution.

    Args:
        images: ``[B, 3, H, W]`` in [0, 1]; H and W multiples of 16.
        quality: ``[B]``, 1 to 100, on the scale of the Independent JPEG Group.

    Returns:
        What a decoder gives back, ``[B, 3, H, W]``.
    """
    device = images.device
    r, g, b = images.mul(255).unbind(1)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    chroma = torch.stack(((b - luma) * 0.564, (r - luma) * 0.713), dim=1)
    scale = torch.where(quality < 50, 5000 / quality, 200 - 2 * quality).view(-1, 1, 1, 1, 1, 1)
    luma = _quantise(luma[:, None] - 128, _LUMA, scale, device) + 128
    small = _quantise(functional.avg_pool2d(chroma, 2), _CHROMA, scale, device)
    blue, red = functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False).unbind(1)
    y = luma[:, 0]
    out = torch.stack((y + red / 0.713, y - 0.344 * blue - 0.714 * red, y + blue / 0.564), dim=1)
    return out.div(255).clamp(0, 1)


def _quantise(plane: Tensor, table: str, scale: Tensor, device: torch.device) -> Tensor:
    basis = _dct_matrix(device)
    steps = ((_steps(table, device) * scale + 50) / 100).floor().clamp(1, 255)
    batch, channels, height, width = plane.shape
    blocks = plane.reshape(batch, channels, height // 8, 8, width // 8, 8)
    spectrum = torch.einsum("ui,bcrikj,vj->bcrukv", basis, blocks, basis)
    spectrum = (spectrum / steps).round() * steps
    blocks = torch.einsum("ui,bcrukv,vj->bcrikj", basis, spectrum, basis)
    return blocks.flatten(4).flatten(2, 3)


def _blur(images: Tensor, amount: Tensor) -> Tensor:
    soft = functional.conv2d(
        functional.pad(images, (3, 3, 3, 3), mode="replicate"), _blur_kernel(images.device), groups=3
    )
    return torch.lerp(images, soft, amount.view(-1, 1, 1, 1))


def _resample(images: Tensor, height: int, width: int) -> Tensor:
    return functional.interpolate(
        images, size=(height, width), mode="bicubic", antialias=True, align_corners=False
    ).clamp(0, 1)


def degrade(images: Tensor) -> Tensor:
    """Spoil clean scenes ``[B, 3, S, S]`` as files and cameras do.

    A third stay sharp, a third go through JPEG at the model's own resolution, a third through a smaller picture of
    another aspect and JPEG there.
    """
    batch, _, size, _ = images.shape
    device = images.device
    light = 1 + (torch.rand(batch, 1, 1, 1, device=device) - 0.5) * 0.5
    tint = 1 + (torch.rand(batch, 3, 1, 1, device=device) - 0.5) * 0.12
    gamma = torch.exp2((torch.rand(batch, 1, 1, 1, device=device) - 0.5) * 0.6)
    images = (images.clamp(1e-4, 1) ** gamma * light * tint).clamp(0, 1)
    amount = torch.rand(batch, device=device) * (torch.rand(batch, device=device) < 0.4)
    images = _blur(images, amount)
    quality = torch.rand(batch, device=device) * 60 + 40
    third = batch // 3
    sizes = [int(n) * 16 for n in torch.randint(_SMALLEST // 16, size // 16 + 1, (2,))]
    small = jpeg(_resample(images[:third], sizes[0], sizes[1]), quality[:third])
    same = jpeg(images[third : 2 * third], quality[third : 2 * third])
    images = torch.cat((_resample(small, size, size), same, images[2 * third :]))
    grain = torch.rand(batch, 1, 1, 1, device=device) * 0.06 * (torch.rand(batch, 1, 1, 1, device=device) < 0.4)
    return (images + torch.randn_like(images) * grain).clamp(0, 1)

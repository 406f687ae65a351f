"""Degradation of images on the device: blur, low resolution, noise, light, JPEG."""

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional

_FADED = 0.3  # of the images have less colour than they had
_SMALLEST = 144  # pixels of a side before JPEG: an image of 160 pixels, squeezed
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
    return torch.tensor([float(v) for v in table.split()], device=device)


@functools.cache
def _taps(device: torch.device, dtype: torch.dtype) -> Tensor:
    taps = torch.tensor([1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0], device=device) / 64
    return taps.to(dtype).expand(3, 1, 1, 7)


@functools.cache
def _dct_matrix(device: torch.device) -> Tensor:
    """Map the 64 pixels of a block to its 64 frequencies, rows by rows."""
    k = torch.arange(8, device=device, dtype=torch.float32)
    basis = torch.cos(math.pi * (2 * k[None, :] + 1) * k[:, None] / 16) / 2
    basis[0] /= math.sqrt(2)
    return torch.kron(basis, basis)


def jpeg(images: Tensor, quality: Tensor) -> Tensor:
    """Encode and decode images [B, 3, H, W] in [0, 1] as JPEG does: quantised 8x8 DCT, chroma at half resolution.

    H and W are multiples of 16; `quality` [B] is 1 to 100, on the scale of the Independent JPEG Group.
    """
    device = images.device
    r, g, b = images.mul(255).unbind(1)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    chroma = torch.stack(((b - luma) * 0.564, (r - luma) * 0.713), dim=1)
    scale = torch.where(quality < 50, 5000 / quality, 200 - 2 * quality).view(-1, 1, 1)
    luma = _quantise(luma[:, None] - 128, _LUMA, scale, device) + 128
    small = _quantise(functional.avg_pool2d(chroma, 2), _CHROMA, scale, device)
    blue, red = functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False).unbind(1)
    y = luma[:, 0]
    out = torch.stack((y + red / 0.713, y - 0.344 * blue - 0.714 * red, y + blue / 0.564), dim=1)
    return out.div(255).clamp(0, 1)


def _quantise(plane: Tensor, table: str, scale: Tensor, device: torch.device) -> Tensor:
    matrix = _dct_matrix(device)
    steps = ((_steps(table, device) * scale + 50) / 100).floor().clamp(1, 255)  # [B, 1, 64]
    batch, channels, height, width = plane.shape
    shape = (batch, channels, height // 8, width // 8, 8, 8)
    blocks = plane.reshape(batch, channels, height // 8, 8, width // 8, 8).transpose(3, 4).reshape(batch, -1, 64)
    spectrum = (blocks @ matrix.T).div_(steps).round_().mul_(steps)
    return (spectrum @ matrix).view(shape).transpose(3, 4).reshape(plane.shape)


def _blur(images: Tensor) -> Tensor:
    """Blur by a binomial kernel of 7 pixels, standard deviation 1.2."""
    taps = _taps(images.device, images.dtype)
    across = functional.conv2d(functional.pad(images, (3, 3, 0, 0), mode="replicate"), taps, groups=3)
    return functional.conv2d(functional.pad(across, (0, 0, 3, 3), mode="replicate"), taps.transpose(2, 3), groups=3)


def _resize_matrix(size: int, new: int, like: Tensor) -> Tensor:
    """Bicubic resampling with antialiasing of `size` pixels to `new`, as a matrix [new, size]."""
    eye = torch.eye(size, device=like.device)[None, None]
    rows = functional.interpolate(eye, size=(new, size), mode="bicubic", antialias=True, align_corners=False)
    return rows[0, 0].to(like.dtype)


def _resample(images: Tensor, height: int, width: int) -> Tensor:
    down = _resize_matrix(images.shape[2], height, images)
    across = _resize_matrix(images.shape[3], width, images)
    return (down @ (images @ across.T)).clamp_(0, 1)


def _some(batch: int, share: float, device: torch.device) -> Tensor:
    """Return the rows of a fixed share of a batch, chosen at random."""
    return torch.rand(batch, device=device).argsort()[: round(batch * share)]


def degrade(images: Tensor) -> Tensor:
    """Degrade clean scenes [B, 3, H, W] in [0, 1] in place, as files and cameras do.

    A third stay sharp, a third go through JPEG at the model's own resolution, a third through a smaller image of
    another aspect and JPEG there; 40 % are blurred, 40 % get grain, 30 % lose colour, a tenth of these all of it. The
    device chooses which. The host draws the size of the smaller image, so a captured graph keeps it.
    """
    batch, _, height, width = images.shape
    device, dtype = images.device, images.dtype

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device)

    light = (1 + (draw(batch, 1, 1, 1) - 0.5) * 0.5) * (1 + (draw(batch, 3, 1, 1) - 0.5) * 0.12)
    gamma = torch.exp2((draw(batch, 1, 1, 1) - 0.5) * 0.6)
    images = images.clamp_(1e-4, 1).pow_(gamma.to(dtype)).mul_(light.to(dtype)).clamp_(max=1)
    faded = _some(batch, _FADED, device)
    grey = _grey(images[faded])
    images[faded] = torch.lerp(grey, images[faded], (draw(len(faded), 1, 1, 1) * 1.1 - 0.1).clamp(min=0).to(dtype))
    soft = _some(batch, 0.4, device)
    sharp = images[soft]
    images[soft] = torch.lerp(sharp, _blur(sharp), draw(len(soft), 1, 1, 1).to(dtype))
    filed = _some(batch, 2 / 3, device)
    third = len(filed) // 2
    quality = draw(len(filed)) * 60 + 40
    sizes = [_smaller(side) for side in (height, width)]
    if third:
        small = jpeg(_resample(images[filed[:third]], *sizes).float(), quality[:third]).to(dtype)
        images[filed[:third]] = _resample(small, height, width)
    images[filed[third:]] = jpeg(images[filed[third:]].float(), quality[third:]).to(dtype)
    rough = _some(batch, 0.4, device)
    grain = torch.randn((len(rough), 3, height, width), device=device, dtype=dtype)
    images[rough] += grain * (draw(len(rough), 1, 1, 1) * 0.06).to(dtype)
    return images.clamp_(0, 1)


def _grey(images: Tensor) -> Tensor:
    return 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]


def _smaller(side: int) -> int:
    """Draw a side of the image before it was enlarged, in pixels: a multiple of 16."""
    least = min(_SMALLEST, side) // 16
    return 16 * int(torch.randint(least, side // 16 + 1, ()))

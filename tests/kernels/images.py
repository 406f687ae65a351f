"""Images to cut on a device, and what Pillow makes of them."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from photonlite.images.crops import CropSpec, select_tiling
from photonlite.images.packing import lanczos_table
from photonlite.images.resize import down_first
from photonlite.kernels.reference.vision import Filters

Case = tuple[Tensor, Filters, Filters | None, int, int, Tensor, Tensor]
Order = tuple[bool, bool]
"""Whether the vertical pass comes first, for the whole image and for the sheet."""


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Draw black and white dots, which make sums overshoot, beside grey ones."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), np.uint8)
    pixels[:, : width // 2] = random.integers(0, 2, (height, width // 2, 3), np.uint8) * 255
    return Image.fromarray(pixels)


def table(in_size: int, out_size: int) -> Tensor:
    axis = lanczos_table(in_size, out_size)
    return torch.from_numpy(np.ascontiguousarray(np.vstack((axis.first[None], axis.coefficients.T))))


def sizes(image: Image.Image, spec: CropSpec) -> list[tuple[int, int]]:
    """Return width and height of the whole and, if there is one, of the sheet."""
    rows, columns = select_tiling(image.height, image.width, spec)
    found = [(spec.crop_size, spec.crop_size)]
    if (rows, columns) != (1, 1):
        found.append((columns * spec.window + 2 * spec.margin, rows * spec.window + 2 * spec.margin))
    return found


def orders(image: Image.Image, spec: CropSpec) -> Order:
    """Return the orders of the product."""
    found = [down_first(image.size, size) for size in sizes(image, spec)]
    return found[0], found[-1]


def case(image: Image.Image, spec: CropSpec, order: Order) -> Case:
    """Return the arguments of `cut_image`."""
    width, height = image.size
    rows, columns = select_tiling(height, width, spec)
    filters, scratch = [], 0
    for (across, down), first in zip(sizes(image, spec), order, strict=False):
        filters.append(Filters(table(width, across), table(height, down), first))
        scratch += 3 * (width * down if first else across * height)
    count = 1 if len(filters) == 1 else 1 + rows * columns
    out = torch.zeros(count, spec.crop_size, spec.crop_size, 3, dtype=torch.uint8)
    sheet = filters[1] if len(filters) == 2 else None
    memory = torch.zeros(scratch, dtype=torch.uint8)
    return torch.from_numpy(np.array(image)), filters[0], sheet, columns, spec.window, out, memory


def on_card(arguments: Case) -> Case:
    """The same on the card, the crops not at an even address."""
    pixels, whole, sheet, columns, window, out, scratch = arguments
    whole, sheet = (
        None if one is None else Filters(one.across.cuda(), one.down.cuda(), one.down_first) for one in (whole, sheet)
    )
    assert whole is not None
    place = torch.zeros(out.numel() + 1, dtype=torch.uint8, device="cuda")[1:].view(out.shape)
    return pixels.cuda(), whole, sheet, columns, window, place, scratch.cuda()


def pillows(image: Image.Image, spec: CropSpec, order: Order | None = None) -> Tensor:
    """AttentionConfig with Pillow, one axis at a time; in the orders of the product unless given."""
    size, window = spec.crop_size, spec.window
    rows, columns = select_tiling(image.height, image.width, spec)
    results = []
    for (width, height), first in zip(sizes(image, spec), order or orders(image, spec), strict=False):
        between = (image.width, height) if first else (width, image.height)
        half = image.resize(between, Image.Resampling.LANCZOS)
        results.append(torch.from_numpy(np.array(half.resize((width, height), Image.Resampling.LANCZOS))))
    crops = results[:1] + [
        sheet[row * window : row * window + size, column * window : column * window + size]
        for sheet in results[1:]
        for row in range(rows)
        for column in range(columns)
    ]
    return torch.stack(crops)

"""A slot's counterparts on the device, allocated once."""

import torch
from torch import Tensor

from photonlite.device.base import Array
from photonlite.kernels.columns import PARAM_COLUMNS, RESULT_COLUMNS
from photonlite.request import MAX_SCORED
from photonlite.runner.slot import PAGES, SlotShape


def transfer(target: Tensor, source: Array) -> None:
    """Copy from the host to the device without waiting; both of one shape and type.

    On the CPU NumPy copies: PyTorch would start OpenMP threads for each calling thread, and with more of them than
    cores every small operation of a decode step takes three times as long.
    """
    if target.is_cuda:
        target.copy_(torch.from_numpy(source), non_blocking=True)
    else:
        target.numpy()[...] = source


def transfer_back(target: Array, source: Tensor) -> None:
    if source.is_cuda:
        torch.from_numpy(target).copy_(source, non_blocking=True)
    else:
        target[...] = source.numpy()


class Buffers:
    """Device counterparts of a slot's host arrays, see `runner.slot`; zeros stand for rows of the scratch page."""

    def __init__(
        self,
        shape: SlotShape,
        device: torch.device,
        dtype: torch.dtype,
        *,
        dim: int,
        max_crops: int,
        crop_size: int,
        image_bytes: int = 0,
    ) -> None:
        def words(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.rows = words(shape.max_rows, PAGES + shape.max_pages)
        self.tokens = words(shape.max_tokens, 3)
        self.packed = words(shape.packed.words)
        self.choices = words(shape.max_rows, PARAM_COLUMNS)
        self.masks = words(shape.max_rows, shape.mask_words)
        self.results = words(shape.max_rows, RESULT_COLUMNS)
        self.scored = words(shape.max_rows, MAX_SCORED)
        self.scores = torch.zeros(shape.max_rows, MAX_SCORED, device=device)
        self.crops = torch.zeros(max_crops, crop_size, crop_size, 3, dtype=torch.uint8, device=device)
        self.images = torch.zeros(image_bytes, dtype=torch.uint8, device=device)  # see `images.packing`
        self.hidden = torch.zeros(shape.max_rows, dim, dtype=dtype, device=device)  # raw hidden states [B, dim]

"""What lanes run while they are measured: encodings and decode steps."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from photonlite.errors import SettingsError
from photonlite.images.crops import CropSpec
from photonlite.models.base import CropEncoder, Model, NextPositions, StepDecoder
from photonlite.runner.buffers import PagedCache
from photonlite.runner.tokens import apply_head

Work = Callable[[], object]

_PAGE = 16


def encoder_of(model: Model) -> CropEncoder:
    """Return the model's fastest encoder of crops.

    Raises:
        SettingsError: The model does not cut images into crops.
    """
    if not isinstance(model.crop_spec, CropSpec):
        raise SettingsError("only models that cut images into crops are tuned so far: the Moondream family")
    with torch.inference_mode():
        return cast(CropEncoder, model.crop_encoder())


def encoding(model: Model, encoder: CropEncoder, crops: int, device: torch.device) -> Work:
    """Return the encoding of an image of so many crops, random ones, down to its embeddings."""
    size = cast(CropSpec, model.crop_spec).crop_size
    pixels = torch.randint(0, 256, (crops, size, size, 3), device=device, dtype=torch.uint8)
    tiling = (1, max(1, crops - 1))  # of the crops behind the whole image
    return lambda: encoder.project(encoder.encode(pixels), tiling)


class Decoding:
    """One decode step of sequences with random keys and values, again and again at one position, with the text head.

    Args:
        model: With fused decode steps.
        streams: Sequences.
        context: Positions that each has.
        device: Where the model is.
        decoder: Its steps in fused kernels unless given.

    Attributes:
        logits: Of the last step, ``[streams, vocab]``; None before the first.

    Raises:
        SettingsError: The model has no fused decode steps on its device, or not so many positions.
    """

    def __init__(
        self, model: Model, streams: int, context: int, device: torch.device, decoder: StepDecoder | None = None
    ) -> None:
        shape, decoder = model.shape, decoder or model.step_decoder()
        head = None if model.heads is None else model.heads.text
        if decoder is None or head is None:
            why = model.plain_parts().get("decode steps", "its heads are not data")
            raise SettingsError(f"only models with fused decode steps are tuned: {why}")
        if context + 1 > shape.max_context:
            raise SettingsError(f"a context of {context} is too long: this model has {shape.max_context} positions")
        self._decoder, self._head = decoder, head
        each = -(-(context + 1) // _PAGE)
        self._x = model.embed(_ids(streams, device))
        self._cache = PagedCache(shape, streams * each, _PAGE, device, self._x.dtype)
        self._cache.keys.normal_()
        self._cache.values.normal_()
        table = torch.randperm(streams * each, device=device).view(streams, each).int()
        positions = torch.full((streams,), context, dtype=torch.int32, device=device)
        slots = table[:, context // _PAGE] * _PAGE + context % _PAGE
        self._rows = NextPositions(positions, slots.contiguous(), table)
        self.logits: Tensor | None = None

    def __call__(self) -> None:
        """Take the step."""
        # The decoder may overwrite its input.
        self.logits = apply_head(self._head, self._decoder(self._x.clone(), self._rows, self._cache))


def _ids(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) % 64

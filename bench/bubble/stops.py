"""Stops that only the device knows: a model whose sequences all end at one position, so that no host can foresee it.

```
forward   hidden state ── + mark where the position has reached the stop ──> hidden state
logits    of the end id: far above all others where the mark is, far below them where it is not
```
"""

import torch
from torch import Tensor

from photonlite.images.crops import CropSpec
from photonlite.models.base import CropEncoder, Model, ModelShape
from photonlite.models.layers import Attention

_LIMIT = 2.0**14
"""Far above what the first number of a hidden state or a logit ever is; twice as much still fits float16."""


class StopModel:
    """A model that goes on up to a position and ends there, whatever the inner one would say.

    A text ends with the first token chosen at the position or behind it; a list of objects where it may end. All of it
    is tensor code of fixed shapes, so that CUDA graphs can hold it: four or five small kernels a step.

    Args:
        model: Does everything else.
        stop: The position.
        end: The id that ends texts and lists.
        device: Where the model is.
        dtype: Of its hidden states.
    """

    def __init__(self, model: Model, *, stop: int, end: int, device: torch.device, dtype: torch.dtype) -> None:
        self._model = model
        self._end = end
        # The padding of a prompt may reach past the context: by less than another context.
        self._marks = torch.zeros(2 * model.shape.max_context, device=device, dtype=dtype)
        self._marks[stop:] = 2 * _LIMIT

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run the model, and mark the first number of the hidden states from the stop on."""
        hidden = self._model.forward(x, positions, attention)
        hidden[..., 0] += self._marks[positions]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Give the model's logits, those of the end id aside."""
        logits = self._model.logits(hidden)
        logits[..., self._end] = hidden[..., 0] - _LIMIT
        return logits

    @property
    def shape(self) -> ModelShape:
        """The model's."""
        return self._model.shape

    @property
    def crop_spec(self) -> CropSpec:
        """The model's."""
        return self._model.crop_spec

    @property
    def vision(self) -> CropEncoder:
        """The model's."""
        return self._model.vision

    @property
    def size_octaves(self) -> float:
        """The model's."""
        return self._model.size_octaves

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """As the model does."""
        return self._model.encode_image(pixels, tiling)

    def embed(self, ids: Tensor) -> Tensor:
        """As the model does."""
        return self._model.embed(ids)

    def embed_coordinates(self, values: Tensor) -> Tensor:
        """As the model does."""
        return self._model.embed_coordinates(values)

    def embed_sizes(self, values: Tensor) -> Tensor:
        """As the model does."""
        return self._model.embed_sizes(values)

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """As the model does."""
        return self._model.coordinate_logits(hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """As the model does."""
        return self._model.size_logits(hidden)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """As the model does."""
        return self._model.coordinate_of(index, bins)

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        """As the model does."""
        return self._model.size_of(index, bins)

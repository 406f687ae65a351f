"""Input embeddings on the device: of prompt tokens, and of tokens that rows have just sampled.

```
pending   int32 [B, 3]      id, bin0, bin1       bin0 < 0: a text token; bin1 < 0: a coordinate; else width, height
tokens    int32 [B, T, 3]   id, value0, value1   values as float bits, NO_VALUE where there is none
```
"""

import numpy as np
import torch
from torch import Tensor

from photonlite.kernels.embedding import embed_pending
from photonlite.kernels.reference.embedding import InputTables
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import Model
from photonlite.runner.slot import NO_VALUE

_NO_VALUE = float(np.int32(NO_VALUE).view(np.float32))


class InputEmbedding:
    """Embeds words by their ids, coordinates and sizes by their bins or values."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model = model
        self._bos = model.embed(torch.tensor([model.shape.bos_id], device=device))  # [1, dim]
        bins = model.coordinate_logits(self._bos).shape[-1]
        coordinates = model.coordinate_of(torch.arange(bins, device=device), bins)
        bins = model.size_logits(self._bos).shape[-1]
        self._sizes = model.size_of(torch.arange(bins, device=device), bins)
        self._coordinates = model.embed_coordinates(coordinates)  # [bins, dim]
        self._tables = self._find_tables() if device.type == "cuda" and HAS_TRITON else None
        self.coordinates: list[float] = coordinates.tolist()
        self.sizes: list[float] = self._sizes.tolist()

    def bos(self, count: int) -> Tensor:
        """Embed the first position of `count` sequences, ``[count, 1, dim]``."""
        return self._bos.expand(count, 1, -1)

    def pending(self, table: Tensor, rows: Tensor) -> Tensor:
        """Embed some rows, int32 ``[B]``, of the pending table, ``[R, 3]``, as ``[B, dim]``."""
        if self._tables is not None:
            return embed_pending(table, rows, self._tables)
        sampled = table.index_select(0, rows)
        ids, bins = sampled[:, 0], sampled[:, 1:]
        text = self._model.embed(ids)
        # Every row is embedded in all three ways: clamp a bin of one kind to the table of the other.
        coordinate = self._coordinates[bins[:, 0].clamp(0, len(self._coordinates) - 1).long()]
        size = self._model.embed_sizes(self._sizes[bins.clamp(0, len(self._sizes) - 1).long()])
        return _select(bins >= 0, text, coordinate, size)

    def tokens(self, rows: Tensor) -> Tensor:
        """Embed tokens, ``[B, T, 3]``, as ``[B, T, dim]``."""
        ids, values = rows[..., 0], rows[..., 1:].contiguous().view(torch.float32)
        given = values != _NO_VALUE  # [B, T, 2]
        values = values.masked_fill(~given, 0)
        text = self._model.embed(ids)
        coordinate = self._model.embed_coordinates(values[..., 0].flatten()).view_as(text)
        size = self._model.embed_sizes(values.flatten(0, 1)).view_as(text)
        return _select(given, text, coordinate, size)

    def _find_tables(self) -> InputTables | None:
        """Return the tables of the fused kernel, if the model offers its weights."""
        weights = self._model.input_weights
        if weights is None:
            return None
        coordinates, frequencies = self._coordinates.contiguous(), weights.frequencies.contiguous()
        return InputTables(weights.words, coordinates, self._sizes, frequencies, weights.weight, weights.bias)


def _select(given: Tensor, text: Tensor, coordinate: Tensor, size: Tensor) -> Tensor:
    """Take from `text` where neither number is given, from `coordinate` where one is, else from `size`."""
    return torch.where(given[..., 1:], size, torch.where(given[..., :1], coordinate, text))

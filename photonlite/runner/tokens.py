"""Tokens on the device: embedded as input of a forward pass, and sampled from its raw hidden states.

```
tokens    int32 [T, 3]     id, value0, value1   values as float bits, NO_VALUE where there is none ──┐
pending   int32 [R, 3]     id, bin0, bin1       bin0 < 0: a text token; bin1 < 0: a coordinate; ─────┴─ embed ─> forward
                   ^                            else width and height
                   └─── kernels.sampling <─┬─ logits ─────────────┬─ hidden <─────────────────────────────────────┘
            results <──────────┘           ├─ coordinate logits ──┤
                                           ├─ size logits ────────┤
            scores <─── score_ids <────────┴─ logits, where rows need probabilities
```

Where rows have a repetition penalty, logits go through `penalize` on their way to `kernels.sampling`. Shapes are fixed
and nothing waits for the device, so that a CUDA graph can hold it; none holds scores and penalties, which are rare.
"""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from photonlite.kernels.embedding import embed_pending
from photonlite.kernels.reference.embedding import InputTables
from photonlite.kernels.reference.sampling import Logits
from photonlite.kernels.sampling import penalize, sample_tokens, score_ids
from photonlite.kernels.small_batch_gemm import small_batch_gemm
from photonlite.kernels.triton_utils import has_triton
from photonlite.models.base import Head, Model, NumberHeads, size_heads
from photonlite.runner.sampling_params import WITH_COORDINATES, WITH_IDS, WITH_SIZES, Variant
from photonlite.runner.slots import NO_VALUE

_NO_VALUE = float(np.int32(NO_VALUE).view(np.float32))

COORDINATE_SHARE = 0.02  # bins within this share of the image of the chosen one count towards a coordinate's mass
SIZE_RATIO = 1.25  # bins within this factor of the chosen one count towards a size's mass


class InputEmbedding:
    """Embeds words by their ids, and coordinates and sizes, where the model has them, by their bins or values."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model, self._numbers, self._size_heads = model, model.numbers, size_heads(model.numbers)
        self.bos = model.embed(torch.tensor([model.shape.bos_id or 0], device=device))  # [1, dim]
        self._tables: InputTables | None = None  # of the fused kernel, if the model offers its weights
        self.coordinates: list[float] = []
        self.sizes: list[float] = []
        if self._numbers is not None:
            self._read_numbers(self._numbers, device)

    def _read_numbers(self, numbers: NumberHeads, device: torch.device) -> None:
        bins = numbers.coordinate_logits(self.bos).shape[-1]
        coordinates = numbers.coordinate_of(torch.arange(bins, device=device), bins)
        self._coordinates = numbers.embed_coordinates(coordinates).contiguous()  # [bins, dim]
        self.coordinates = coordinates.tolist()
        if self._size_heads is None:
            return
        bins = self._size_heads.size_logits(self.bos).shape[-1]
        self._sizes = self._size_heads.size_of(torch.arange(bins, device=device), bins)
        self.sizes = self._sizes.tolist()
        if has_triton(device) and (weights := self._model.input_weights) is not None:
            frequencies = weights.frequencies.contiguous()
            own = self._coordinates, self._sizes, frequencies
            self._tables = InputTables(weights.words, *own, weights.weight, weights.bias)

    def pending(self, table: Tensor, rows: Tensor) -> Tensor:
        """Embed some rows, int32 ``[B]``, of the pending table, ``[R, 3]``, as ``[B, dim]``."""
        if self._tables is not None:
            return embed_pending(table, rows, self._tables)
        sampled = table.index_select(0, rows)
        ids, bins = sampled[:, 0], sampled[:, 1:]
        text = self._model.embed(ids)
        if self._numbers is None:
            return text
        # Every row is embedded in all three ways: clamp a bin of one kind to the table of the other.
        coordinate = self._coordinates[bins[:, 0].clamp(0, len(self._coordinates) - 1).long()]
        size = None
        if self._size_heads is not None:
            size = self._size_heads.embed_sizes(self._sizes[bins.clamp(0, len(self._sizes) - 1).long()])
        return _select(bins >= 0, text, coordinate, size)

    def tokens(self, rows: Tensor) -> Tensor:
        """Embed tokens, ``[T, 3]``, as ``[T, dim]``; anything at positions of images, whose id is none of a word."""
        text = self._model.embed(rows[:, 0].clamp(min=0))
        if self._numbers is None:
            return text
        values = rows[:, 1:].contiguous().view(torch.float32)
        given = values != _NO_VALUE  # [T, 2]
        values = values.masked_fill(~given, 0)
        coordinate = self._numbers.embed_coordinates(values[:, 0])
        size = None if self._size_heads is None else self._size_heads.embed_sizes(values)
        return _select(given, text, coordinate, size)


def _select(given: Tensor, text: Tensor, coordinate: Tensor, size: Tensor | None) -> Tensor:
    """Take from `text` where neither number is given, from `coordinate` where one is, else from `size`."""
    found = torch.where(given[:, :1], coordinate, text)
    return found if size is None else torch.where(given[:, 1:], size, found)


def coordinate_radius(bins: int) -> float:
    """Return the bins on either side that count towards a coordinate's mass."""
    return bins * COORDINATE_SHARE


def size_radius(bins: int, octaves: float) -> float:
    """Return the bins on either side that count towards a size's mass, on their logarithmic scale."""
    return math.log2(SIZE_RATIO) * (bins - 1) / octaves


def sample_from_hidden(
    model: Model,
    hidden: Tensor,
    params: Tensor,
    masks: Tensor,
    results: Tensor,
    pending: Tensor,
    rows: Tensor,
    scores: tuple[Tensor, Tensor] | None = None,
    seen: Tensor | None = None,
    *,
    variant: Variant,
    sampled: bool,
) -> None:
    """Sample a token for each row from raw hidden states ``[B, dim]``; see `kernels.sampling` for the other tensors.

    `scores` are ids, int32 ``[B, MAX_SCORED]`` with -1 for none, and the float32 tensor that takes their probabilities,
    which no penalty changes. `seen` has the ids that repetition penalties are for as bits, as in `masks`.
    """
    ids = coordinate = size = None
    near = around = 0.0
    numbers = model.numbers
    if variant in WITH_IDS:
        ids = head_logits(model, "text", hidden)
    if variant in WITH_COORDINATES and numbers is not None:
        coordinate = head_logits(model, "coordinate", hidden)
        near = coordinate_radius(coordinate.shape[-1])
    if variant in WITH_SIZES and (sizes := size_heads(numbers)) is not None:
        size = head_logits(model, "size", hidden)
        around = size_radius(size.shape[-1], sizes.size_octaves)
    free = ids if ids is None or seen is None else penalize(ids, seen, params)
    logits = Logits(free, coordinate, size, near, around)
    sample_tokens(logits, hidden, params, masks, results, pending, rows, sampled=sampled)
    if scores is not None and ids is not None:
        score_ids(ids, masks, *scores)


def head_logits(model: Model, head: Literal["text", "coordinate", "size"], hidden: Tensor) -> Tensor:
    """Map raw hidden states ``[B, dim]`` to ``[B, vocab]``, ``[B, bins]`` or ``[B, 2, bins]``."""
    heads = model.heads if has_triton(hidden.device) else None
    if heads is not None and (fused := getattr(heads, head)) is not None:
        logits = apply_head(fused, hidden)
        return logits.view(len(hidden), 2, -1) if head == "size" else logits
    if head == "text":
        return model.logits(hidden)
    numbers = model.numbers
    assert numbers is not None, f"a grammar wants the {head} head of a model that has none"
    if head == "coordinate":
        return numbers.coordinate_logits(hidden)
    sizes = size_heads(numbers)
    assert sizes is not None, "a grammar wants the size head of a model that has none"
    return sizes.size_logits(hidden)


def apply_head(head: Head, hidden: Tensor) -> Tensor:
    """Apply a head to raw hidden states ``[B, dim]``; rounds as the model's own layers do, except the input of GELU."""
    x, norm = hidden, head.norm
    for number, (weight, bias) in enumerate(head.layers, 1):
        x = small_batch_gemm(x, weight, bias, norm=norm, gelu=number < len(head.layers))
        norm = None
    return x

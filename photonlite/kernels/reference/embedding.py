"""Embedding sampled tokens in PyTorch; see `kernels.embedding`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class InputTables:
    """What sampled tokens are embedded with, contiguous and all in the model's type except `sizes`."""

    words: Tensor  # embedding of each id, [vocab, dim]
    coordinates: Tensor  # embedding of each coordinate bin, [bins, dim]
    sizes: Tensor  # width or height of each size bin, float32 [bins]
    frequencies: Tensor  # [2, F]: features of a size are the cosines and sines of 2 pi (w, h) @ frequencies
    weight: Tensor  # [dim, 2 F], of the linear layer behind them, cosines first
    bias: Tensor  # [dim]


def embed_pending(pending: Tensor, rows: Tensor, tables: InputTables) -> Tensor:
    ids, *bins = pending.index_select(0, rows).long().unbind(1)
    first, second = (each[:, None] for each in bins)
    text = tables.words[ids]
    coordinate = tables.coordinates[first[:, 0].clamp(0, len(tables.coordinates) - 1)]
    both = torch.cat((first, second), dim=1).clamp(0, len(tables.sizes) - 1)
    # Rounded step by step, as the model's own layers round.
    angle = (2 * math.pi * tables.sizes[both].to(tables.frequencies.dtype)) @ tables.frequencies
    size = functional.linear(torch.cat((angle.cos(), angle.sin()), dim=1), tables.weight, tables.bias)
    return torch.where(second >= 0, size, torch.where(first >= 0, coordinate, text))

"""Layout of question rows: parts are concatenated, gaps closed, and rows padded to a fixed length.

Every part has its full width in every row; unused places hold NONE.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bench.nano.scenes.batched.painting import constant

BOS, SKILL, ARGUMENT, ANSWER, THINK, COORD, SIZE, GROUND, GROUND_END = 0, 1, 2, 3, 4, 5, 6, 7, 9
NONE = -1


class Questions(NamedTuple):
    """A batch of questions of one length."""

    ids: Tensor  # Input and target ids, [B, L]; coordinate and size places hold their special ids
    # What those places stand for, [B, L, 2]: a coordinate in the first, or width and height; at integers of outlines
    # the first holds the integer as a share of the grid
    values: Tensor
    weight: Tensor  # How much a place counts in the loss, [B, L]; 0 where it is no part of the answer
    outline: Tensor  # True at the integers of an outline, [B, L]


@dataclass(frozen=True)
class Part:
    """Neighbouring places of all rows."""

    ids: Tensor  # [R, W]
    values: Tensor | None = None  # [R, W, 2]; None for zeros
    weight: float | tuple[float, ...] | Tensor = 0.0  # Of all its places, of each, or of each in each row [R, W]
    outline: bool = False  # Whether they are integers of an outline

    @property
    def weights(self) -> Tensor:
        """Weights of all places, [R, W]."""
        if isinstance(self.weight, Tensor):
            return self.weight
        each = self.weight if isinstance(self.weight, tuple) else (self.weight,) * self.ids.shape[1]
        return constant(each, torch.float32, self.ids.device).expand(self.ids.shape)


def scalar(value: int, device: torch.device) -> Tensor:
    """Return a whole number on the device, for `torch.where`: a Python number would be written anew each time."""
    return constant(value, torch.long, device)


def arange(count: int, device: torch.device) -> Tensor:
    """Return 0, 1, 2 ... [count] on the device."""
    return constant(tuple(range(count)), torch.long, device)


def token(id_: int, like: Tensor) -> Tensor:
    """Repeat one id for every row of `like` [R, ...]: [R, 1]."""
    return scalar(id_, like.device).expand(len(like), 1)


def masked(mask: Tensor, ids: Tensor | int) -> Tensor:
    """Keep ids where the mask says so, NONE elsewhere; both broadcast."""
    kept = scalar(ids, mask.device) if isinstance(ids, int) else ids
    return torch.where(mask, kept, scalar(NONE, mask.device))


def join_parts(parts: Sequence[Part], length: int) -> Questions:
    """Join parts, close the gaps and pad to `length`; a row that does not fit loses its end."""
    device, rows = parts[0].ids.device, len(parts[0].ids)
    zeros = constant(0.0, torch.float32, device)
    widths = [part.ids.shape[1] for part in parts]
    width = sum(widths)
    # One place more, which stands for padding.
    ids = torch.cat([*(part.ids for part in parts), scalar(BOS, device).expand(rows, 1)], 1)
    values = [zeros.expand(*part.ids.shape, 2) if part.values is None else part.values for part in parts]
    used = ids[:, :-1] != NONE
    # Place 0 takes what is not used, and what does not fit.
    place = used.cumsum(1) * used
    place = place * (place <= length)
    source = torch.full((rows, length + 1), width, device=device)
    source = source.scatter(1, place, arange(width, device).expand(rows, -1))[:, 1:]
    outline = [part.outline for part, n in zip(parts, widths, strict=True) for _ in range(n)]
    return Questions(
        ids.gather(1, source),
        torch.cat([*values, zeros.expand(rows, 1, 2)], 1).gather(1, source[..., None].expand(-1, -1, 2)),
        torch.cat([*(part.weights for part in parts), zeros.expand(rows, 1)], 1).gather(1, source),
        constant((*outline, False), torch.bool, device)[source],
    )


def select_rows(first: Questions, second: Questions, choose_first: Tensor) -> Questions:
    """Take each row from one of two layouts of the same length; `choose_first` [B]."""
    pairs = zip(first, second, strict=True)
    return Questions(*(torch.where(choose_first.view(-1, *[1] * (one.ndim - 1)), one, two) for one, two in pairs))


def slots(questions: Questions, lengths: Sequence[int]) -> list[Questions]:
    """Split rows [slots * B, L] into one batch a slot, each cut to its own length."""
    chunks = zip(*(column.chunk(len(lengths)) for column in questions), strict=True)
    return [Questions(*(x[:, :length] for x in chunk)) for chunk, length in zip(chunks, lengths, strict=True)]


def padded(rows: Sequence[Sequence[int]], device: torch.device, width: int | None = None) -> Tensor:
    """Put rows of ids into a table [rows, W], NONE behind each."""
    width = width or max(map(len, rows))
    return torch.tensor([[*row, *[NONE] * (width - len(row))] for row in rows], dtype=torch.long, device=device)

"""Positions on three axes: time, height and width.

```
text     one step on all three axes a token
image    starting at s: time s, height s + row, width s + column on the grid of embeddings;
         the next position is s + the longer side of the grid
```

An image takes fewer steps than it has embeddings. What follows a prompt therefore counts from `PromptPositions.delta`:
the position of the token at index `i` of the sequence is `i + delta`, on all axes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class PromptPositions:
    """Positions of a prompt."""

    axes: npt.NDArray[np.int32]  # [3, T]: time, height, width
    delta: int  # added to the index of a later token


def prompt_positions(parts: Iterable[int | tuple[int, int]]) -> PromptPositions:
    """Return the positions of a prompt; a part is a number of tokens of text, or rows and columns of an image."""
    axes: list[npt.NDArray[np.int32]] = []
    start = length = 0
    for part in parts:
        if isinstance(part, int):
            axes.append(np.broadcast_to(np.arange(start, start + part, dtype=np.int32), (3, part)))
            start, length = start + part, length + part
        else:
            axes.append(start + np.indices((1, *part), np.int32).reshape(3, -1))
            start, length = start + max(part), length + part[0] * part[1]
    return PromptPositions(np.concatenate(axes, axis=1), start - length)

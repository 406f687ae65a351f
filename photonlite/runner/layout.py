"""One array of int32 that says where the prompts of a launch lie on one axis: filled on the host, copied at once.

```
ends     [2, R]    where each row's last position stands on the axis;  how many positions it has by then, 0: unused
tiles    [N, 5]    the axis cut for attention, see `kernels.columns`
places   [T, 3]    of each position: position in its row, write slot, id of its word or EMBEDDED
```

What varies stands last, so that the used part is one run.
"""

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from photonlite.device.base import Array
from photonlite.kernels.columns import QUERY_TILE, TILE_COLUMNS

POSITION_COLUMN, SLOT_COLUMN, WORD_COLUMN = 0, 1, 2
"""Columns of `places`."""

EMBEDDED = -1
"""Stands for a word where the input is no word: it is an image's, or has a value."""

_PLACE_COLUMNS = 3

AnyArray = TypeVar("AnyArray", Array, Tensor)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where the parts begin.

    Attributes:
        rows: Rows of a launch at most.
        positions: Positions of a launch at most.
    """

    rows: int
    positions: int

    @property
    def tiles(self) -> int:
        """Tiles of a launch at most: full ones, and one of each row that is not."""
        return self.positions // QUERY_TILE + self.rows

    @property
    def words(self) -> int:
        """Length of the array."""
        return self.used(self.positions)

    def used(self, positions: int) -> int:
        """Give the length of the part that so many positions use."""
        return 2 * self.rows + TILE_COLUMNS * self.tiles + _PLACE_COLUMNS * positions

    def ends_of(self, packed: AnyArray) -> AnyArray:
        """View the ends."""
        return packed[: 2 * self.rows].reshape(2, self.rows)

    def tiles_of(self, packed: AnyArray) -> AnyArray:
        """View the tiles."""
        return packed[2 * self.rows : self.used(0)].reshape(-1, TILE_COLUMNS)

    def places_of(self, packed: AnyArray, positions: int) -> AnyArray:
        """View the places of so many positions."""
        return packed[self.used(0) : self.used(positions)].reshape(-1, _PLACE_COLUMNS)

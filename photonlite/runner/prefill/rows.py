"""Rows of a prefill launch as ranges of positions, sorted into padded batches; plain numbers, no device work.

```
positions   0 .. prefix           prefix ..                                   start + count
fresh       BOS and image         prompt and generated tokens                 start = 0
resumed                           [ start .................................   start >= prefix, the rest is cached
```
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from photonlite.batch import BatchItem, ScheduledBatch
from photonlite.models.base import ModelShape
from photonlite.runner.buffers import Buffers, HostViews
from photonlite.runner.graphs.capture import Capturer, GraphReport
from photonlite.runner.slot import Slot

SLACK = 32
"""Padding of a row that is always allowed: it costs less than one more pass over the weights."""


class Prefill(Protocol):
    """A way to run prompts; all methods are called in inference mode."""

    def upload(self, buffers: Buffers, host: HostViews, slot: Slot, plan: ScheduledBatch) -> None:
        """Copy what a launch needs besides the slot's rows and tokens."""
        ...

    def run(self, buffers: Buffers, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts; leave each row's last raw hidden state in the buffers."""
        ...

    def capture(self, capturer: Capturer) -> GraphReport:
        """Capture graphs, on the scratch page."""
        ...

    def rehearse(self, buffers: Buffers, positions: int) -> None:
        """Run the largest launches, of so many positions at most, on the scratch page."""
        ...


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One row of the launch."""

    index: int  # of the launch
    start: int  # first position that gets keys and values
    count: int  # of such positions
    first: int  # its first token among the uploaded ones
    leading: int  # positions before its tokens: BOS, and an image that is not cached; 0 for a resumed row
    block: int  # leading positions that see each other in both directions
    job: int | None  # number of the image's encode job; None without an image, or where it is cached

    @property
    def tokens(self) -> int:
        """Number of its tokens, which follow BOS and image from `start` on."""
        return self.count - self.leading


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows that run together; all begin at position 0 with an image, or all without one, or all later."""

    rows: tuple[PrefillRow, ...]

    @property
    def leading(self) -> int:
        """Positions of each row before its tokens."""
        return self.rows[0].leading

    @property
    def block(self) -> int:
        """Leading positions that see each other in both directions."""
        return self.rows[0].block

    @property
    def tokens(self) -> int:
        """Tokens of the longest row."""
        return max(row.tokens for row in self.rows)

    @property
    def cached(self) -> int:
        """Cached positions of the row that has the most."""
        return max(row.start for row in self.rows)


def make_rows(items: Iterable[BatchItem], prefix_length: int) -> list[PrefillRow]:
    """Describe the rows of a launch, whose tokens lie row by row; BOS and an image have `prefix_length` positions."""
    rows: list[PrefillRow] = []
    first = 0
    for index, item in enumerate(items):
        block = prefix_length if item.job is not None else 0
        leading = 0 if item.start else block or 1
        job = None if item.job is None else item.job.number
        rows.append(PrefillRow(index, item.start, item.count, first, leading, block, job))
        first += item.count - leading
    return rows


def make_batches(items: Iterable[BatchItem], prefix_length: int) -> list[PaddedBatch]:
    """Sort rows into batches in which padding stays below a quarter of a row or `SLACK` positions."""
    kinds: dict[tuple[int, int], list[PrefillRow]] = {}
    for row in make_rows(items, prefix_length):
        kinds.setdefault((row.leading, row.block), []).append(row)
    return [PaddedBatch(tuple(group)) for rows in kinds.values() for group in _of_similar_length(rows)]


def largest_batches(shape: ModelShape, max_rows: int, positions: int) -> tuple[PaddedBatch, PaddedBatch]:
    """Return the batches that take most memory: all positions at once, and most cached positions in most rows.

    A launch has at most so many positions; a single longer prompt goes alone.
    """
    block = shape.prefix_length
    count = max(1, min(max_rows, positions // block))
    length = max(positions // count, block) if count > 1 else shape.max_context
    whole = [PrefillRow(index, 0, length, 0, block, block, -1) for index in range(count)]
    few = max(1, min(positions // max_rows, shape.max_context - 1))
    resumed = [PrefillRow(index, shape.max_context - few, few, 0, 0, 0, None) for index in range(max_rows)]
    return PaddedBatch(tuple(whole)), PaddedBatch(tuple(resumed))


def _of_similar_length(rows: list[PrefillRow]) -> list[list[PrefillRow]]:
    groups: list[list[PrefillRow]] = []
    for row in sorted(rows, key=lambda row: -row.count):
        if groups and groups[-1][0].count <= max(row.count * 5 // 4, row.count + SLACK):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups

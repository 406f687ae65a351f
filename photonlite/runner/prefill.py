"""Rows of a prefill launch as spans of positions, and sorted into padded batches: plain numbers, no device work yet.

```
positions   0 .. before           before ..                                    start + count
fresh       BOS and image       prompt and what had been produced            start = 0
resumed                           [ start ...................................  start >= before, the rest is cached
```
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from photonlite.batch import BatchItem, ScheduledBatch
from photonlite.models.base import ModelShape
from photonlite.runner.buffers import Buffers, HostViews
from photonlite.runner.graphs import Capturer, GraphReport
from photonlite.runner.slot import Slot

SLACK = 32
"""A row may be padded by so many positions at any rate: they cost less than one more pass over the weights."""


class Prefill(Protocol):
    """A way to run prompts; all methods are called in inference mode."""

    def upload(self, buffers: Buffers, host: HostViews, slot: Slot, plan: ScheduledBatch) -> None:
        """Copy what a launch needs besides rows and tokens; those are in the slot's host arrays."""
        ...

    def run(self, buffers: Buffers, slot: Slot, plan: ScheduledBatch) -> None:
        """Run prompts; leave each row's last raw hidden state in the buffers."""
        ...

    def capture(self, capturer: Capturer) -> GraphReport:
        """Capture what can be captured, on the scratch page."""
        ...

    def rehearse(self, buffers: Buffers, positions: int) -> None:
        """Run the largest launches, of so many positions at most, on the scratch page."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """One row of the launch.

    Attributes:
        index: BatchItem of the launch.
        start: First position that gets keys and values.
        count: How many do.
        first: Its first token among those uploaded.
        leading: Positions before its tokens: BOS, and an image that is not cached; 0 for a resumed row.
        block: Leading positions that see each other in both directions.
        job: Number of the image's encode job; None without an image, or where it is cached.
    """

    index: int
    start: int
    count: int
    first: int
    leading: int
    block: int
    job: int | None

    @property
    def tokens(self) -> int:
        """How many tokens it has: what follows BOS and image from `start` on."""
        return self.count - self.leading


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that run together; all begin at position 0 with an image, or all without one, or all later.

    Attributes:
        spans: The rows.
    """

    spans: tuple[Span, ...]

    @property
    def leading(self) -> int:
        """Positions of each row before its tokens."""
        return self.spans[0].leading

    @property
    def block(self) -> int:
        """Leading positions that see each other in both directions."""
        return self.spans[0].block

    @property
    def tokens(self) -> int:
        """Tokens of the longest row."""
        return max(span.tokens for span in self.spans)

    @property
    def cached(self) -> int:
        """Cached positions of the row that has most."""
        return max(span.start for span in self.spans)


def make_spans(rows: Iterable[BatchItem], prefix_length: int) -> list[Span]:
    """Describe the rows of a launch; their tokens lie one row after the other.

    Args:
        rows: Of the launch.
        prefix_length: Positions of BOS and an image.
    """
    spans: list[Span] = []
    first = 0
    for index, row in enumerate(rows):
        block = prefix_length if row.job is not None else 0
        leading = 0 if row.start else block or 1
        job = None if row.job is None else row.job.number
        spans.append(Span(index, row.start, row.count, first, leading, block, job))
        first += row.count - leading
    return spans


def make_batches(rows: Iterable[BatchItem], prefix_length: int) -> list[Batch]:
    """Sort rows into batches in which padding stays below a quarter of a row or `SLACK` positions.

    Args:
        rows: Of the launch; their tokens lie one row after the other.
        prefix_length: Positions of BOS and an image.
    """
    sorts: dict[tuple[int, int], list[Span]] = {}
    for span in make_spans(rows, prefix_length):
        sorts.setdefault((span.leading, span.block), []).append(span)
    return [Batch(tuple(spans)) for found in sorts.values() for spans in _alike(found)]


def largest_batches(shape: ModelShape, max_rows: int, positions: int) -> tuple[Batch, Batch]:
    """Give what takes most memory: all positions at once, and the longest cached positions in the most rows.

    Args:
        shape: Of the model.
        max_rows: Rows of a launch.
        positions: Of a launch at most; a single longer prompt goes alone.
    """
    block = shape.prefix_length
    count = max(1, min(max_rows, positions // block))
    length = max(positions // count, block) if count > 1 else shape.max_context
    whole = [Span(index, 0, length, 0, block, block, -1) for index in range(count)]
    few = max(1, min(positions // max_rows, shape.max_context - 1))
    resumed = [Span(index, shape.max_context - few, few, 0, 0, 0, None) for index in range(max_rows)]
    return Batch(tuple(whole)), Batch(tuple(resumed))


def _alike(spans: list[Span]) -> list[list[Span]]:
    """Group spans of nearly the same length."""
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: -span.count):
        if groups and groups[-1][0].count <= max(span.count * 5 // 4, span.count + SLACK):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups

"""Counters, gauges and histograms of the engine.

One thread, the engine's, writes; any thread reads. Nothing is locked: a reader may see a step's tokens before its rows,
but every number it sees was true a moment ago, and a histogram's count always equals the sum of its buckets.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from photonlite.batch import Kind
from photonlite.observe.units import format_seconds

# From 10 microseconds to 100 seconds, six bounds a decade: quantiles of a period of 3 ms are good to a few per cent.
TIME_BOUNDS = (*(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 1.5, 2, 3, 5, 7)), 100.0)
ROW_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)

GAUGES = (
    "pages_free",
    "pages_cached",
    "pages_total",
    "page_bytes",
    "running",
    "waiting",
    "in_flight",
    "open_realtime",
    "open_bulk",
    "oldest_realtime_s",
    "oldest_bulk_s",
    "preparing",
    "prepared_bytes",
)
"""Fields of `EngineMetrics` that go up and down; its other integers only grow."""


class Histogram:
    """How often values fell between fixed bounds.

    Args:
        bounds: Upper ends of the buckets, growing, each one part of its bucket; one more bucket takes what is larger.

    Attributes:
        sum: Of all values.
        largest: Of all values; 0 before the first.
    """

    __slots__ = ("_counts", "bounds", "largest", "sum")

    def __init__(self, bounds: Sequence[float] = TIME_BOUNDS) -> None:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise AssertionError(f"a histogram's bounds grow, got {bounds}")
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.largest = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value of at least 0, which was seen so many times."""
        # The largest goes first: a reader that sees the count sees a largest that is no smaller.
        if value > self.largest:
            self.largest = value
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += times * value

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    @property
    def mean(self) -> float:
        """Of all values; NaN where there are none."""
        count = self.count
        return self.sum / count if count else math.nan

    @property
    def buckets(self) -> list[int]:
        """Values in each bucket, the one beyond the last bound at the end."""
        return list(self._counts)

    def quantile(self, q: float) -> float:
        """Estimate the value that a share of all values does not exceed, as if each bucket were filled evenly.

        Args:
            q: The share, in [0, 1].

        Returns:
            The estimate; never above `largest`. NaN where there are no values.

        Raises:
            ValueError: q lies outside [0, 1].
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies in [0, 1], got {q}")
        counts = self.buckets
        rank = q * sum(counts)
        below = 0
        for index, count in enumerate(counts):
            if count and below + count >= rank:
                low = self.bounds[index - 1] if index else 0.0
                high = min(self.bounds[index], self.largest) if index < len(self.bounds) else self.largest
                # Rounding must not carry it over the end of its bucket.
                return min(high, low + (high - low) * (rank - below) / count)
            below += count
        return math.nan

    def snapshot(self) -> dict[str, Any]:
        """Give count, sum, largest and, by upper bound, how many values do not exceed it: plain values for JSON."""
        cumulative: dict[str, int] = {}
        count = 0
        for bound, inside in zip((*map(repr, self.bounds), "+Inf"), self.buckets, strict=True):
            count += inside
            cumulative[bound] = count
        return {"count": count, "sum": self.sum, "largest": self.largest, "buckets": cumulative}


def _by_kind() -> dict[Kind, int]:
    return {"encode": 0, "prefill": 0, "decode": 0}


@dataclass(eq=False, slots=True)
class EngineMetrics:
    """What an engine has done since it started, and how it stands. Times in seconds.

    Attributes:
        queue_s: From the prepared image to the first launch that carried the prompt, of each request.
        preprocess_s: Decoding and hashing an image, and cutting its crops if they were needed, of each request.
        encode_s: The vision encoder, of each request whose image had to be encoded for it.
        prefill_s: The prompt's forward pass, of each request.
        decode_s: All later tokens, of each request.
        time_to_first_token_s: From submission to the first token, of each request.
        token_s: Between two successive tokens of a request.
        batch_size: Rows of each decode step, without padding.
        requests_submitted: Taken in.
        requests_finished: Answered.
        requests_failed: Ended by an error.
        requests_cancelled: Given up by the caller.
        dropped_preparing: Calls whose deadlines passed before their images were prepared; no requests yet. The next
            three are among `requests_failed`.
        dropped_waiting: Requests whose deadlines passed before their prompts ran.
        dropped_hopeless: Real-time requests that were given up before any work was spent on them: by measured rates
            their first tokens would have come too late.
        dropped_running: Requests whose deadlines passed while they were being answered.
        tokens: Committed.
        steps: Launched, by kind.
        crops_encoded: By the vision encoder.
        prefix_hits: Images found in the prefix cache.
        prefix_misses: Images that had to be encoded.
        preemptions: Sequences that gave their pages back and started again.
        zombie_rows: Rows of steps that carried a finished sequence.
        padding_rows: Rows that filled a batch up to a captured size.
        graph_replays: Steps that ran as a CUDA graph.
        eager_steps: Steps that did not.
        pages_free: Of the KV cache, those that hold nothing.
        pages_cached: Of the KV cache, those that nothing uses: they are kept for later requests with the same image
            or prompt, and given away when pages are needed. The others are in use.
        pages_total: Of the KV cache.
        page_bytes: Of one page, all layers: half as many with keys and values in FP8 as in bfloat16.
        running: Sequences admitted.
        waiting: Sequences not yet admitted.
        in_flight: Steps launched and not committed.
        open_realtime: Real-time requests in the engine, waiting or running.
        open_bulk: All others.
        oldest_realtime_s: Age of the oldest real-time request that is not admitted, since it was asked; 0 without.
        oldest_bulk_s: The same of all others.
        preparing: Calls that wait for room before their images are decoded.
        prepared_bytes: Decoded images that wait for the engine.
    """

    queue_s: Histogram = field(default_factory=Histogram)
    preprocess_s: Histogram = field(default_factory=Histogram)
    encode_s: Histogram = field(default_factory=Histogram)
    prefill_s: Histogram = field(default_factory=Histogram)
    decode_s: Histogram = field(default_factory=Histogram)
    time_to_first_token_s: Histogram = field(default_factory=Histogram)
    token_s: Histogram = field(default_factory=Histogram)
    batch_size: Histogram = field(default_factory=lambda: Histogram(ROW_BOUNDS))
    requests_submitted: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    dropped_preparing: int = 0
    dropped_waiting: int = 0
    dropped_hopeless: int = 0
    dropped_running: int = 0
    tokens: int = 0
    steps: dict[Kind, int] = field(default_factory=_by_kind)
    crops_encoded: int = 0
    prefix_hits: int = 0
    prefix_misses: int = 0
    preemptions: int = 0
    zombie_rows: int = 0
    padding_rows: int = 0
    graph_replays: int = 0
    eager_steps: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    pages_total: int = 0
    page_bytes: int = 0
    running: int = 0
    waiting: int = 0
    in_flight: int = 0
    open_realtime: int = 0
    open_bulk: int = 0
    oldest_realtime_s: float = 0.0
    oldest_bulk_s: float = 0.0
    preparing: int = 0
    prepared_bytes: int = 0

    @property
    def histograms(self) -> dict[str, Histogram]:
        """All histograms by name."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Histogram)}

    def snapshot(self) -> dict[str, Any]:
        """Give everything as plain values for JSON, under "counters", "gauges" and "histograms"; from any thread."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        counters = {name: value for name, value in values.items() if isinstance(value, int) and name not in GAUGES}
        return {
            "counters": {**counters, "steps": dict(self.steps)},
            "gauges": {name: values[name] for name in GAUGES},
            "histograms": {name: histogram.snapshot() for name, histogram in self.histograms.items()},
        }

    def summary(self) -> str:
        """Write a table for terminals; what has not been observed is left out."""
        return "\n".join((*self._totals(), *self._times()))

    __str__ = summary

    def _totals(self) -> list[str]:
        used = self.pages_total - self.pages_free - self.pages_cached
        lookups = self.prefix_hits + self.prefix_misses
        hit_share = f" ({self.prefix_hits / lookups:.0%})" if lookups else ""
        groups: dict[str, Mapping[str, int]] = {
            "requests": {
                "submitted": self.requests_submitted,
                "finished": self.requests_finished,
                "failed": self.requests_failed,
                "cancelled": self.requests_cancelled,
            },
            "dropped": {
                "while prepared": self.dropped_preparing,
                "waiting": self.dropped_waiting,
                "hopeless": self.dropped_hopeless,
                "running": self.dropped_running,
            },
            "now": {"running": self.running, "waiting": self.waiting, "steps in flight": self.in_flight},
            "steps": {str(kind): count for kind, count in self.steps.items()},
            "run as": {"graph replays": self.graph_replays, "eager steps": self.eager_steps},
            "rows": {"tokens": self.tokens, "zombie": self.zombie_rows, "padding": self.padding_rows},
            "images": {
                "crops": self.crops_encoded,
                "prefix misses": self.prefix_misses,
                f"prefix hits{hit_share}": self.prefix_hits,
            },
            "pages": {
                "used": used,
                "cached": self.pages_cached,
                "total": self.pages_total,
                "bytes each": self.page_bytes,
                "pre-emptions": self.preemptions,
            },
        }
        return [
            f"{title:<10}" + ", ".join(f"{value:,} {name}" for name, value in group.items())
            for title, group in groups.items()
        ]

    def _times(self) -> list[str]:
        observed = {name: histogram for name, histogram in self.histograms.items() if histogram.count}
        if not observed:
            return []
        lines = ["", f"{'':<22}{'count':>9}{'mean':>10}{'p50':>10}{'p95':>10}{'largest':>10}"]
        for name, histogram in observed.items():
            write = format_seconds if name.endswith("_s") else "{:.1f}".format
            values = (histogram.mean, histogram.quantile(0.5), histogram.quantile(0.95), histogram.largest)
            title = name.removesuffix("_s").replace("_", " ")
            lines.append(f"{title:<22}{histogram.count:>9,}" + "".join(f"{write(value):>10}" for value in values))
        return lines

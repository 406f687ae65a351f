"""Counters, gauges and histograms of the engine.

The engine thread writes, any thread reads, without locks: a reader may see a step's tokens before its rows, but every
number was true a moment ago, and a histogram's count always equals the sum of its buckets.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, get_args

from photonlite.batch import Kind
from photonlite.errors import RequestCancelledError
from photonlite.sequence import Sequence

# 10 us to 100 s, six bounds a decade: quantiles of a period of 3 ms are exact to a few per cent.
TIME_BOUNDS = (*(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 1.5, 2, 3, 5, 7)), 100.0)
ROW_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)

_UNITS = ((1e6, "us"), (1e3, "ms"), (1.0, "s"))


def format_seconds(seconds: float) -> str:
    """Return a time with three digits in us, ms or s; a dash for NaN."""
    if math.isnan(seconds):
        return "-"
    for scale, unit in _UNITS:
        value = seconds * scale
        if value < 999.5 or unit == "s":  # compared as rounded: 999.7 us is 1.00 ms
            break
    digits = 0 if value == 0 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


class Histogram:
    """Counts of values between increasing bounds; a bound belongs to the bucket below it, the last one is open."""

    __slots__ = ("_counts", "bounds", "largest", "sum")

    def __init__(self, bounds: ListLike[float] = TIME_BOUNDS) -> None:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise AssertionError(f"a histogram's bounds grow, got {bounds}")
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.largest = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        # `largest` is written first, so that a reader of the count never sees a smaller one.
        if value > self.largest:
            self.largest = value
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += times * value

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def mean(self) -> float:
        count = self.count
        return self.sum / count if count else math.nan

    @property
    def buckets(self) -> list[int]:
        """Counts of the buckets, that of larger values at the end."""
        return list(self._counts)

    def quantile(self, q: float) -> float:
        """Estimate a quantile, as if buckets were filled evenly; NaN without values, ValueError outside [0, 1]."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies in [0, 1], got {q}")
        counts = self.buckets
        rank = q * sum(counts)
        below = 0
        for index, count in enumerate(counts):
            if count and below + count >= rank:
                low = self.bounds[index - 1] if index else 0.0
                high = min(self.bounds[index], self.largest) if index < len(self.bounds) else self.largest
                return min(high, low + (high - low) * (rank - below) / count)  # rounding may exceed the bucket
            below += count
        return math.nan

    def snapshot(self) -> dict[str, Any]:
        """Return count, sum, largest and cumulative counts by upper bound, for JSON."""
        cumulative: dict[str, int] = {}
        count = 0
        for bound, inside in zip((*map(repr, self.bounds), "+Inf"), self.buckets, strict=True):
            count += inside
            cumulative[bound] = count
        return {"count": count, "sum": self.sum, "largest": self.largest, "buckets": cumulative}


def _counted(help: str) -> Any:
    return field(default=0, metadata={"help": help})


def _gauge(help: str, default: float = 0) -> Any:
    return field(default=default, metadata={"help": help, "gauge": True})


@dataclass(eq=False, slots=True)
class EngineMetrics:
    """Counters, gauges and histograms of an engine since it started; times in seconds."""

    queue_s: Histogram = field(default_factory=Histogram, metadata={"help": "From prepared images to the first step."})
    preprocess_s: Histogram = field(
        default_factory=Histogram, metadata={"help": "Decoding, hashing, cutting an image."}
    )
    encode_s: Histogram = field(default_factory=Histogram, metadata={"help": "The image encoder, for new images."})
    prefill_s: Histogram = field(default_factory=Histogram, metadata={"help": "The prompt's forward pass."})
    decode_s: Histogram = field(default_factory=Histogram, metadata={"help": "All tokens of a request but the first."})
    time_to_first_token_s: Histogram = field(default_factory=Histogram, metadata={"help": "From submission to it."})
    token_s: Histogram = field(default_factory=Histogram, metadata={"help": "Between two tokens of a request."})
    batch_size: Histogram = field(
        default_factory=lambda: Histogram(ROW_BOUNDS), metadata={"help": "Rows decoded by a step, without padding."}
    )
    requests_submitted: int = _counted("Requests that were handed to the engine; each name and tile is one.")
    requests_finished: int = _counted("Requests with an answer.")
    requests_failed: int = _counted("Requests that ended with an error; cancelled ones are not among them.")
    requests_cancelled: int = _counted("Requests whose callers gave them up.")
    dropped_preparing: int = _counted("Calls whose deadlines passed before their images were prepared.")
    dropped_waiting: int = _counted("Failed requests whose deadlines passed before their prompts ran.")
    dropped_hopeless: int = _counted("Real-time requests dropped early, since their first token would have been late.")
    dropped_running: int = _counted("Failed requests whose deadlines passed while they were decoded.")
    tokens: int = _counted("Committed tokens.")
    forced_tokens: int = _counted("Committed tokens that were appended in runs, without a decode step for each.")
    steps: dict[Kind, int] = field(
        default_factory=lambda: dict.fromkeys(get_args(Kind), 0), metadata={"help": "Launched steps by kind."}
    )
    crops_encoded: int = _counted("Crops of images that the encoder has read.")
    prefix_hits: int = _counted("Requests all of whose images were in the prefix cache.")
    prefix_misses: int = _counted("Requests with an image that had to be encoded, or whose embeddings were stored.")
    images_restored: int = _counted("Images whose stored embeddings were copied to the device instead of an encoding.")
    pages_restored: int = _counted("Pages of keys and values that were copied to the device instead of a prefill.")
    preemptions: int = _counted("Sequences that gave their pages back and started again.")
    swaps: int = _counted("Sequences whose pages were moved to host memory.")
    pages_swapped_out: int = _counted("Pages that were moved to host memory.")
    pages_swapped_in: int = _counted("Pages that were moved back to the device.")
    zombie_rows: int = _counted("Rows of steps that carried a finished sequence.")
    padding_rows: int = _counted("Rows that filled a batch up to a captured size.")
    graph_replays: int = _counted("Steps that ran as a CUDA graph.")
    steps_in_part: int = _counted("Decode steps in their SM partition, concurrent with the encoder.")
    eager_steps: int = _counted("Steps that ran without a CUDA graph.")
    plain: dict[str, str] = field(default_factory=dict)  # parts without fused kernels on this GPU, and why
    tuning: str = ""  # what says if encoding and decoding have parts of the card; empty where nothing does
    pages_free: int = _gauge("Pages of the KV cache without content.")
    pages_cached: int = _gauge("Unused pages, kept for later requests with the same image or prompt.")
    pages_usable: int = _gauge("Pages of the KV cache.")
    pages_budget: int = _gauge("Pages that running sequences may need together; 0 without such a budget.")
    pages_predicted: int = _gauge("The most pages that the running sequences were to need, when last predicted.")
    pages_forecast: int = _gauge("The last predicted number of pages whose sequences have all ended.")
    pages_peak: int = _gauge("The most pages that the sequences of pages_forecast did need.")
    page_bytes: int = _gauge("Bytes of a page of all layers; with several ranks on each of them.")
    tensor_parallel: int = _gauge("Ranks that run the model.", 1)
    running: int = _gauge("Sequences that are admitted.")
    swapped: int = _gauge("Sequences whose pages are in host memory, or on their way.")
    waiting: int = _gauge("Sequences that are not yet admitted.")
    in_flight: int = _gauge("Steps that are launched and not committed.")
    open_realtime: int = _gauge("Real-time requests that wait or run.")
    open_bulk: int = _gauge("Other requests that wait or run.")
    oldest_realtime_s: float = _gauge("Age of the oldest real-time request that is not admitted; 0 without one.", 0.0)
    oldest_bulk_s: float = _gauge("Age of the oldest other request that is not admitted; 0 without one.", 0.0)
    preparing: int = _gauge("Calls that wait for memory before their images are decoded.")
    prepared_bytes: int = _gauge("Bytes of decoded images that wait for the engine.")

    def count_end(self, sequence: Sequence) -> None:
        """Count a request that has ended, with its times if it has an answer."""
        times = sequence.times
        self.preemptions += times.preemptions
        self.swaps += times.swaps
        if sequence.error is not None:
            cancelled = isinstance(sequence.error, RequestCancelledError)
            self.requests_cancelled += cancelled
            self.requests_failed += not cancelled
            return
        self.requests_finished += 1
        if times.admitted:
            self.queue_s.observe(times.queue_s)
        if sequence.images:
            self.preprocess_s.observe(times.preprocess_s)
            if times.encode_s:
                self.encode_s.observe(times.encode_s)
        if sequence.tokens:
            self.prefill_s.observe(times.prefill_s)
            self.time_to_first_token_s.observe(max(0.0, times.first_token - times.submitted))
            self.decode_s.observe(max(0.0, times.finished - times.first_token))

    @property
    def histograms(self) -> dict[str, Histogram]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Histogram)}

    def snapshot(self) -> dict[str, Any]:
        """Return values for JSON, under "counters", "gauges", "histograms", "plain" and "tuning"; from any thread."""
        gauges = {entry.name: getattr(self, entry.name) for entry in fields(self) if "gauge" in entry.metadata}
        others = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in gauges}
        counters = {name: value for name, value in others.items() if isinstance(value, int)}
        return {
            "counters": {**counters, "steps": dict(self.steps)},
            "plain": dict(self.plain),
            "tuning": self.tuning,
            "gauges": gauges,
            "histograms": {name: histogram.snapshot() for name, histogram in self.histograms.items()},
        }

    def summary(self) -> str:
        """Return a table for terminals, without histograms that have no values."""
        return "\n".join((*self._totals(), *self._times()))

    __str__ = summary

    def _totals(self) -> list[str]:
        used = self.pages_usable - self.pages_free - self.pages_cached
        lookups = self.prefix_hits + self.prefix_misses
        hit_share = f" ({self.prefix_hits / lookups:.0%})" if lookups else ""
        steps = ", ".join(f"{count:,} {kind}" for kind, count in self.steps.items())
        return [
            f"requests  {self.requests_submitted:,} submitted, {self.requests_finished:,} finished, "
            f"{self.requests_failed:,} failed, {self.requests_cancelled:,} cancelled",
            f"dropped   {self.dropped_preparing:,} while prepared, {self.dropped_waiting:,} waiting, "
            f"{self.dropped_hopeless:,} hopeless, {self.dropped_running:,} running",
            f"now       {self.running:,} running, {self.waiting:,} waiting, {self.in_flight:,} steps in flight",
            f"steps     {steps}",
            f"run as    {self.graph_replays:,} graph replays ({self.steps_in_part:,} in a part of the card), "
            f"{self.eager_steps:,} eager steps",
            f"rows      {self.tokens:,} tokens, {self.zombie_rows:,} zombie, {self.padding_rows:,} padding",
            f"images    {self.crops_encoded:,} crops, {self.images_restored:,} restored",
            f"requests  with images: {self.prefix_misses:,} prefix misses, {self.prefix_hits:,} prefix hits{hit_share}",
            f"pages     {used:,} used, {self.pages_cached:,} cached, {self.pages_usable:,} total, "
            f"{self.page_bytes:,} bytes each, {self.preemptions:,} pre-emptions",
            *(f"not fused {part}, because {reason}" for part, reason in self.plain.items()),
            *([f"encoding  by {self.tuning}"] if self.tuning else []),
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

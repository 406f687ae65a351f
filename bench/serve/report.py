"""Tables of the bench: load, overhead, and aims beside what came out."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from bench.bubble.report import Aim, table
from bench.gpu.samples import Sample, median_of
from bench.serve.load import Level, Visit
from bench.serve.overhead import Wait

OVERHEAD_S: Final = 0.002
REFUSED_S: Final = 0.1
GOODPUT: Final = 0.9
PROMPTLY: Final = 0.99
"""Share of refusals that must be prompt: the machine's own hiccups are not the server's."""

LOAD_HEAD: Final = [
    "offered",
    "per second",
    "answered per second",
    "of in-process",
    "first byte p50 / p99",
    "answer p50 / p95 / p99",
    "429",
    "429 after p50 / p99 / most",
    "other",
    "sent late p99",
]
OVERHEAD_HEAD: Final = ["one client, connection kept", "body", "whole p50", "engine p50", "HTTP p10 / p50 / p90", "aim"]


def load_row(level: Level, capacity: float) -> list[str]:
    """Write what became of one rate.

    Args:
        level: It.
        capacity: Answers per second of the closed loop in one process.
    """
    answered, refused = level.answered, level.refused
    waited = [visit.waited for visit in answered]
    return [
        f"{level.rate / capacity:.2f} x",
        f"{level.rate:.1f}",
        f"{level.goodput:.1f}",
        f"{level.goodput / capacity:.0%}",
        _times([visit.first for visit in answered], 0.5, 0.99),
        _times(waited, 0.5, 0.95, 0.99),
        f"{len(refused):,}",
        _times([visit.waited for visit in refused], 0.5, 0.99, 1.0),
        f"{level.failures:,}",
        _times([visit.late for visit in level.counted], 0.99),
    ]


def load_aims(levels: Sequence[Level]) -> list[Aim]:
    """Judge overload: the last level against the best one, where the server refused anything."""
    if not levels or not any(level.refused for level in levels):
        return []
    peak = max(level.goodput for level in levels)
    last = levels[-1]
    share = last.goodput / peak if peak else 0.0
    refused: list[Visit] = [visit for level in levels for visit in level.refused]
    prompt = sum(visit.waited <= REFUSED_S for visit in refused) / len(refused)
    failures = sum(level.failures for level in levels)
    offered = f"answers with {last.rate:.0f} requests per second"
    return [
        Aim(f"{offered}: at least {GOODPUT:.0%} of the peak", f"{share:.0%}", share >= GOODPUT),
        Aim(f"429 within {1e3 * REFUSED_S:.0f} ms: {PROMPTLY:.0%} of them", f"{prompt:.2%}", prompt >= PROMPTLY),
        Aim("requests with another end than an answer or 429", f"{failures}", not failures),
    ]


def overhead_row(what: str, size: int, waits: Sequence[Wait]) -> tuple[list[str], Aim]:
    """Write what HTTP adds to one kind of request.

    Args:
        what: Its name.
        size: Bytes of its body.
        waits: Of its requests.
    """
    added = [wait.overhead_s for wait in waits]
    median = median_of(added)
    reached = median < OVERHEAD_S
    aim = f"{1e3 * OVERHEAD_S:.0f} ms"
    row = [
        what,
        f"{size / 1000:.0f} kB",
        f"{1e3 * median_of(wait.whole_s for wait in waits):.2f}",
        f"{1e3 * median_of(wait.engine_s for wait in waits):.2f}",
        _times(added, 0.1, 0.5, 0.9),
        f"{aim} {'reached' if reached else 'MISSED'}",
    ]
    return row, Aim(f"HTTP adds less than {aim}: {what}", f"{1e3 * median:.2f} ms", reached)


def aims_table(aims: Iterable[Aim]) -> str:
    """Write aims as a table."""
    rows = [[aim.text, aim.value, "reached" if aim.reached else "MISSED"] for aim in aims]
    return table(["aim", "measured", ""], rows, left=3)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a quantile: the largest value for 1, NaN without values."""
    if not values:
        return math.nan
    ordered = sorted(Sample.of(values).values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _times(values: Sequence[float], *shares: float) -> str:
    """Write percentiles in milliseconds."""
    if not values:
        return "-"
    return " / ".join(f"{1e3 * percentile(values, share):.4g}" for share in shares)

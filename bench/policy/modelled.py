"""A device that is a table of times, and a runner whose virtual clock it moves: no work is done."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from photonlite.batch import EncodeJob, Step, Transfer
from photonlite.request import Allowed, Token

WORD = Token(20)
"""What every token is: it ends nothing."""

Curve = tuple[tuple[int, float], ...]
"""Sizes and milliseconds, at least two of them; in between and beyond, straight lines."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What launches take, in milliseconds: those of the device by size, those of the host by kind.

    Attributes:
        encode: By crops.
        prefill: By positions.
        decode: By rows.
        finalize: By rows.
        host: Of the host, for each kind of launch: planning, launching and committing it, sampling included.
        page_s: Seconds to copy a page to host memory or back.
    """

    encode: Curve
    prefill: Curve
    decode: Curve
    finalize: Curve
    host: Mapping[str, float] = field(default_factory=dict)
    page_s: float = 0.0

    def device_s(self, step: Step) -> float:
        """Return the seconds that a step's forward pass takes."""
        if step.kind == "encode":
            return at(self.encode, sum(group.count for group in step.plan.groups)) / 1e3
        if step.kind == "prefill":
            return at(self.prefill, sum(row.count for row in step.rows)) / 1e3
        return at(self.decode, len(step.rows)) / 1e3

    def best_s(self, crops: int, positions: int, tokens: int, rows: int) -> float:
        """Return the least device seconds of a request, if each of its launches is as full as it pays.

        Args:
            crops: Of its image.
            positions: Of its prompt.
            tokens: Of its answer.
            rows: Decoded together.
        """
        step = (at(self.decode, rows) + at(self.finalize, rows)) / rows
        return (crops * _least(self.encode) + positions * _least(self.prefill) + (tokens - 1) * step) / 1e3


H200 = Costs(
    encode=((1, 2.07), (2, 3.33), (5, 6.8), (9, 11.7), (13, 17.3), (16, 21.3)),
    prefill=((1, 0.9), (740, 3.7), (1480, 6.9), (2960, 14.0)),
    decode=((1, 0.82), (8, 1.2), (32, 2.2)),
    finalize=((1, 0.06), (32, 0.08)),
    host={"encode": 0.37, "prefill": 0.86, "decode": 0.32},
)
"""Moondream 2 in bfloat16 on one H200: graphs, measured one by one, and the engine's thread under 64 clients."""


def at(curve: Curve, size: int) -> float:
    """Read a curve."""
    place = min(max(1, bisect_left(curve, (size,))), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[place - 1 : place + 1]
    return y0 + (size - x0) * (y1 - y0) / (x1 - x0)


def _least(curve: Curve) -> float:
    """Return the least that a unit costs at the sizes of a curve."""
    return min(cost / size for size, cost in curve)


class ModelledRunner:
    """Runs steps on a device that takes the time that a table says; see `batch.Executor`.

    Args:
        costs: The table.

    Attributes:
        now: The host's virtual clock, in seconds.
        launches: By kind.
        units: Crops, prompts and rows that launches held, by kind.
    """

    def __init__(self, costs: Costs) -> None:
        self.now = 0.0
        self._costs = costs
        self._device_free = self._bus_free = 0.0
        self._arrivals: dict[Transfer, float] = {}
        self._ends: dict[int, float] = {}
        self.clear_counts()

    def clear_counts(self) -> None:
        """Count from here on."""
        self.launches: Counter[str] = Counter()
        self.units: Counter[str] = Counter()

    def launch(self, step: Step) -> None:
        """Let the device begin as soon as it is free."""
        self.now += self._costs.host.get(step.kind, 0.0) / 1e3
        step.device_s = self._costs.device_s(step)
        self._work(step, step.device_s)
        self.launches[step.kind] += 1
        self.units[step.kind] += sum(group.count for group in step.plan.groups) or len(step.rows)

    def finalize(self, step: Step, allowed: Sequence[Allowed | None]) -> None:
        """Let it sample."""
        self._work(step, at(self._costs.finalize, len(allowed)) / 1e3)

    def collect(self, step: Step) -> list[Token | Exception | None]:
        """Wait for it."""
        self.now = max(self.now, self._ends.pop(step.number))
        return [None if row.index is None else WORD for row in step.rows]

    def has_ended(self, step: Step) -> bool:
        """See whether it has ended."""
        return self._ends[step.number] <= self.now

    def transfer(self, transfer: Transfer) -> None:
        """Let the bus copy as soon as it is free; nothing else waits for it."""
        transfer.device_s = len(transfer.pages) * self._costs.page_s
        self._bus_free = self._arrivals[transfer] = max(self.now, self._bus_free) + transfer.device_s

    def transferred(self, transfer: Transfer, *, wait: bool) -> bool:
        """Wait for it, or see whether it has ended."""
        if not wait and self._arrivals[transfer] > self.now:
            return False
        self.now = max(self.now, self._arrivals.pop(transfer))
        return True

    def forget(self, job: EncodeJob) -> None:
        """Do nothing: nothing is kept."""

    def free_memory(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _work(self, step: Step, seconds: float) -> None:
        self._device_free = self._ends[step.number] = max(self.now, self._device_free) + seconds

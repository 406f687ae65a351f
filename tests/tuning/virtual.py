"""A card on a virtual clock: two lanes, and a table of how much work slows down beside other work."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from photonlite.tuning.lanes import Lane, Replay


@dataclass(frozen=True)
class Timed:
    """Work of a kind that takes so long alone on the whole card."""

    kind: str
    seconds: float

    def __call__(self) -> None:
        raise AssertionError("work on a virtual card takes no real time")


@dataclass(eq=False)
class VirtualLane:
    sms: int
    captured: list[Timed] = field(default_factory=list)

    def capture(self, work: Callable[[], object]) -> Replay:
        assert isinstance(work, Timed)
        self.captured.append(work)
        return work

    def play(self, queue: Sequence[Replay], gate: Any) -> Any:
        raise AssertionError("a virtual card runs its lanes itself")

    def close(self) -> None: ...


class VirtualCard:
    """Speeds: of (kind, SMs), as a share of the speed on the whole card; `beside` multiplies where another kind runs.

    Attributes:
        ran: Every run: kinds and lengths of its queues.
    """

    sms = 132

    def __init__(
        self,
        speeds: Mapping[tuple[str, int], float] | None = None,
        beside: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self._speeds, self._beside = speeds or {}, beside or {}
        self.ran: list[list[tuple[str, int]]] = []

    def whole(self, *, first: bool = False) -> VirtualLane:
        return VirtualLane(self.sms)

    def divided(self, sms: int) -> tuple[VirtualLane, VirtualLane]:
        return VirtualLane(sms), VirtualLane(self.sms - sms)

    def close(self) -> None: ...

    def run(self, queues: Sequence[tuple[Lane, Sequence[Replay]]]) -> list[list[float]]:
        works = [list(queue) for _, queue in queues]
        self.ran.append([(queue[0].kind, len(queue)) for queue in works])
        ends: list[list[float]] = [[] for _ in queues]
        left = [queue[0].seconds for queue in works]
        now = 0.0
        while any(len(done) < len(queue) for done, queue in zip(ends, works, strict=True)):
            active = [index for index, queue in enumerate(works) if len(ends[index]) < len(queue)]
            current = {index: works[index][len(ends[index])].kind for index in active}
            rate = {index: self._speeds.get((current[index], queues[index][0].sms), 1.0) for index in active}
            for index in active:
                for other in active:
                    rate[index] *= self._beside.get((current[index], current[other]), 1.0) if other != index else 1.0
            step = min(left[index] / rate[index] for index in active)
            now += step
            for index in active:
                left[index] -= step * rate[index]
                if math.isclose(left[index], 0, abs_tol=1e-12):
                    ends[index].append(now)
                    left[index] = works[index][len(ends[index])].seconds if len(ends[index]) < len(works[index]) else 0
        return ends

"""Turns at the engine: which waiting request is next, and how long a further one would wait.

```
join ──> waiting, a line for each caller ── granted ──> inside the engine ──> leave
```

Fair queueing: next is the caller that has used the fewest engine seconds divided by its weight (the counters of Sheng
et al., "Fairness in serving large language models", OSDI 2024, which count tokens). Requests inside share the time
that passes equally. A caller that returns after a pause starts at the smallest counter: pauses earn no credit.

The engine answers in the order in which it gets requests, so what is inside must leave room for newcomers:

- A caller alone may fill the engine and a quarter more, so that the next requests are prepared.
- Where every caller has as many requests waiting as the engine takes, they fill it once.
- Otherwise, and for `_PRESENT_S` after another caller has left, so many are inside that each takes at most as many
  times as long as alone as there are callers; `Crowding` knows how many. A caller with none inside counts as one.
- Each caller may always have one inside, and as many as another one relative to its weight.

Real-time requests go before bulk work, also inside the engine, until their caller is `_LEAD_S` ahead of others.
"""

import asyncio
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from photonlite.server.limits.callers import Caller
from photonlite.server.limits.estimates import Costs, Crowding, Estimate, Kind

_PRESENT_S: Final = 60.0
"""Seconds after its last answer for which a caller counts as present."""
_MOST_ABSENT: Final = 1024
"""Callers without a request that are remembered."""
_LEAD_S: Final = 0.5
"""Engine seconds by which real-time requests of a caller may be ahead of others."""


class Turn:
    """One request's turn.

    Attributes:
        granted: Done once the request may enter the engine; its result is whether it goes before bulk work there.
        charged: Engine seconds that its caller was charged in advance.
        entered: Value of `EngineTurns._work` when it entered the engine; None while it waits.
        begun: The same by the clock.
    """

    def __init__(self, line: "_Line", kind: Kind, realtime: bool) -> None:
        self.line = line
        self.kind = kind
        self.realtime = realtime
        self.granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.charged = 0.0
        self.entered: float | None = None
        self.begun = 0.0
        self.left = False


class _Line:
    """The requests of one caller, and the engine seconds it has used divided by its weight."""

    def __init__(self, caller: Caller, used: float) -> None:
        self.caller = caller
        self.used = used
        self.realtime: deque[Turn] = deque()
        self.bulk: deque[Turn] = deque()
        self.waiting: Counter[Kind] = Counter()
        self.inside = 0

    @property
    def queue(self) -> deque[Turn]:
        return self.realtime or self.bulk

    @property
    def busy(self) -> bool:
        return bool(self.inside or self.queue)

    def join(self, turn: Turn) -> None:
        (self.realtime if turn.realtime else self.bulk).append(turn)
        self.waiting[turn.kind] += 1

    def drop(self, turn: Turn) -> None:
        (self.realtime if turn.realtime else self.bulk).remove(turn)
        self._count_out(turn)

    def pop(self) -> Turn:
        turn = self.queue.popleft()
        self._count_out(turn)
        return turn

    def charge(self, seconds: float) -> None:
        self.used += seconds / self.caller.weight

    def _count_out(self, turn: Turn) -> None:
        self.waiting[turn.kind] -= 1
        if not self.waiting[turn.kind]:
            del self.waiting[turn.kind]


class EngineTurns:
    """Grants turns; belongs to one event loop. `batch` requests run together in the engine."""

    def __init__(self, batch: int, clock: Callable[[], float]) -> None:
        self._batch = batch
        self._alone = batch + max(1, batch // 4)
        self._clock = clock
        self._costs = Costs()
        self._crowding: dict[Kind, Crowding] = {}
        self._busy: dict[str, _Line] = {}
        self._absent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Callers without requests, in the order in which they left: seconds used, time of leaving."""
        self._inside: Counter[Kind] = Counter()
        self._entered: defaultdict[Kind, float] = defaultdict(float)
        """Sums of `Turn.entered` of those inside."""
        self._least = 0.0
        """Smallest `used` of busy callers; it never decreases."""
        self._work = 0.0
        """Engine seconds used by a hypothetical request that was inside all the time."""
        self._at = clock()

    @asynccontextmanager
    async def turn(self, caller: Caller, kind: Kind, *, realtime: bool = False) -> AsyncIterator[bool]:
        """Wait for a turn, and keep it for a block; yields whether the request goes before bulk work."""
        turn = self.join(caller, kind, realtime=realtime)
        answered = False
        try:
            first = await turn.granted
            yield first
            answered = True
        finally:
            self.leave(turn, answered=answered)

    def join(self, caller: Caller, kind: Kind, *, realtime: bool = False) -> Turn:
        """Start to wait for a turn; the caller must `leave` it."""
        self._advance()
        line = self._busy.get(caller.id)
        if line is None:
            used, _ = self._absent.pop(caller.id, (0.0, 0.0))
            line = self._busy[caller.id] = _Line(caller, max(used, self._least))
        turn = Turn(line, kind, realtime)
        line.join(turn)
        self._grant()
        return turn

    def leave(self, turn: Turn, *, answered: bool) -> None:
        """End a turn, or the wait for it; `answered` says whether the engine completed it. Idempotent."""
        if turn.left:
            return
        turn.left = True
        self._advance()
        line = turn.line
        if turn.entered is None:
            turn.granted.cancel()
            line.drop(turn)
        else:
            self._take_out(turn, turn.entered, answered)
        self._least = max(self._least, min(other.used for other in self._busy.values()))
        if not line.busy:
            del self._busy[line.caller.id]
            self._absent[line.caller.id] = line.used, self._at
            if len(self._absent) > _MOST_ABSENT:
                self._absent.popitem(last=False)
        self._grant()

    def expected_s(self, caller: Caller, kind: Kind | None = None) -> float:
        """Return an upper estimate of the seconds until one more request of a caller would be answered.

        What waits before it is worked off one after the other; then it shares the engine with those inside. Without a
        kind, it is the time until the request would enter the engine.

        A caller without open requests gets 0: such a request is always worth a try, since an estimate that refused
        every request would never be corrected by a measurement.
        """
        line = self._busy.get(caller.id)
        if line is None:
            return 0.0
        self._advance()
        cost = Estimate() if kind is None else self._cost(kind, 1)
        before = self._waiting(line)
        if before.mean:
            mine = before.mean + cost.mean
            others = sum(
                min(self._waiting(other).mean, mine * other.caller.weight / caller.weight)
                for other in self._busy.values()
                if other is not line
            )
            before = before.scaled(1 + others / before.mean)
        return (before + cost.scaled(self._inside.total() + 1)).most

    def next_s(self, caller: Caller) -> float:
        """Return about how often, in seconds, a request of the caller is answered at the current load."""
        self._advance()
        if not self._inside:
            return 0.0
        mean = sum(self._cost(kind, count).mean for kind, count in self._inside.items()) / self._inside.total()
        weights = sum(line.caller.weight for line in self._busy.values())
        return mean * max(1.0, weights / caller.weight)

    def _advance(self) -> None:
        now, count = self._clock(), self._inside.total()
        if count:
            self._work += (now - self._at) / count
        self._at = now

    def _grant(self) -> None:
        while (line := self._next()) is not None and self._has_room(line):
            turn = line.pop()
            turn.entered, turn.begun = self._work, self._at
            turn.charged = self._costs.of(turn.kind).mean
            goes_first = turn.realtime and self._is_within_lead(line)
            line.charge(turn.charged)
            line.inside += 1
            self._inside[turn.kind] += 1
            self._entered[turn.kind] += turn.entered
            if not turn.granted.done():  # else its task was cancelled and is about to leave
                turn.granted.set_result(goes_first)

    def _take_out(self, turn: Turn, entered: float, answered: bool) -> None:
        """Charge a request that leaves the engine for the seconds it used, and update the estimates."""
        turn.line.inside -= 1
        self._inside[turn.kind] -= 1
        self._entered[turn.kind] -= entered
        if not self._inside[turn.kind]:
            del self._inside[turn.kind], self._entered[turn.kind]
        used, seconds = self._work - entered, self._at - turn.begun
        turn.line.charge(used - turn.charged)
        if answered and used and seconds / used <= self._batch:  # else it also waited inside
            self._crowding.setdefault(turn.kind, Crowding()).add(seconds / used, seconds)
        self._costs.add(turn.kind, used, answered=answered)

    def _next(self) -> _Line | None:
        def rank(line: _Line) -> tuple[float, int]:
            return line.used - _LEAD_S * bool(line.realtime), line.inside

        return min((line for line in self._busy.values() if line.queue), key=rank, default=None)

    def _has_room(self, line: _Line) -> bool:
        """Whether the next request of the caller whose turn it is may enter the engine."""
        inside = self._inside.total()
        if not line.inside or line.realtime:
            return inside < 2 * self._batch
        while self._absent and next(iter(self._absent.values()))[1] < self._at - _PRESENT_S:
            self._absent.popitem(last=False)
        others = [other for other in self._busy.values() if other is not line]
        if not (others or self._absent):
            return inside < self._alone
        reserved = sum(not other.inside for other in others) or not others
        if inside + reserved >= self._batch:
            return False
        if others and all(len(other.queue) >= self._batch for other in self._busy.values()):
            return True
        if any(line.inside + 1 <= other.inside * line.caller.weight / other.caller.weight for other in others):
            return True
        crowding = self._crowding.setdefault(line.queue[0].kind, Crowding())
        return inside + reserved + 1 <= crowding.room(1 + (len(others) or 1))

    def _is_within_lead(self, line: _Line) -> bool:
        return all(line.used - other.used <= _LEAD_S for other in self._busy.values())

    def _cost(self, kind: Kind, count: int) -> Estimate:
        """Cost of `count` requests: each at least what those of its kind inside have used so far."""
        inside = self._inside[kind]
        return self._costs.of(kind).sum_of(count, self._work - self._entered[kind] / inside if inside else 0.0)

    def _waiting(self, line: _Line) -> Estimate:
        total = Estimate()
        for kind, count in line.waiting.items():
            total += self._cost(kind, count)
        return total

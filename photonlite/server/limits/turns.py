"""Turns at the engine: which waiting request is next, and how long a further one would wait.

Fair queueing: next is the caller that has used the fewest engine seconds divided by its weight (the counters of Sheng
et al., "Fairness in serving large language models", OSDI 2024, which count tokens). Requests inside share the time
that passes equally. A caller that returns after a pause starts at the smallest counter: pauses earn no credit.

The engine answers in the order in which it gets requests, so what is inside must leave room for newcomers:

- A caller alone may fill the engine and a quarter more, so that the next requests are prepared.
- Where every caller has as many requests waiting as the engine takes, they fill it once.
- Otherwise, and for `_PRESENT_S` after another caller has left, so many are inside that each takes at most as many
  times as long as alone as there are callers; `Crowding` knows how many. A caller with none inside counts as one.
- Each caller may always have one inside, and as many as another one relative to its weight.
- A request about several names or tiles counts as that many.

Real-time requests go before bulk work, also inside the engine, until their caller is `_LEAD_S` ahead of others.
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from photonlite.results import Metrics
from photonlite.server.calls import Call, count_parts
from photonlite.server.limits.callers import Caller
from photonlite.skills.search import MAX_REQUESTS

_PRESENT_S: Final = 60.0  # seconds after its last answer for which a caller counts as present
_MOST_ABSENT: Final = 1024  # callers without a request that are remembered
_LEAD_S: Final = 0.5  # engine seconds by which real-time requests of a caller may be ahead of others
_MEMORY: Final = 64  # number of answers after which the weight of an older one has fallen to about a third
_FEW: Final = 3.0  # requests inside the engine from which on they count as many
_ENOUGH: Final = 4  # answers that a mean needs
_MARGIN: Final = 1.1
_SPREADS: Final = 3.0  # standard deviations that an upper estimate adds: one in fifty exponential values is larger

End: TypeAlias = Literal["answered", "given up", "refused"]


class Kind(NamedTuple):
    """Requests that are expected to cost about the same."""

    skill: str
    images: int  # binary digits of their number
    form: bool  # constrained by a schema, choices or a pattern
    reasoning: bool
    length: int  # binary digits of the limit of tokens or objects, or of the number of choices
    parts: int = 1  # requests that it makes of the engine, about: a power of two


def kind_of(call: Call) -> Kind:
    arguments = call.arguments
    settings: Any = arguments.get("settings") or {}
    limit = settings.get("max_tokens" if call.skill in ("caption", "query", "chat") else "max_objects", 0)
    limit = len(arguments.get("choices") or ()) or limit
    form = any(arguments.get(name) is not None for name in ("schema", "choices", "regex"))
    length, parts = int(limit).bit_length(), 1 << (min(count_parts(arguments), MAX_REQUESTS) - 1).bit_length()
    images = len(call.images) + (call.image is not None)
    return Kind(call.skill, images.bit_length(), form, bool(arguments.get("reasoning")), length, parts)


class RunningMean:
    """Exponentially weighted mean and variance."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        part = 1 / min(self.count, _MEMORY)
        difference = value - self.mean
        self.mean += part * difference
        self.variance = (1 - part) * (self.variance + part * difference * difference)

    def variance_of_sum(self, count: int) -> float:
        """Return the variance of a sum of further values: theirs, and that of the mean, which comes from so many."""
        return (count + count * count / min(max(1, self.count), 2 * _MEMORY)) * self.variance


class Costs:
    """Engine seconds that requests have used, by kind; a kind without answers has the mean of all kinds."""

    def __init__(self) -> None:
        self._known: dict[Kind | None, RunningMean] = {None: RunningMean()}

    def add(self, kind: Kind, seconds: float, end: End) -> None:
        """Count a request: one given up counts with the mean added, and not at all if it was given up early."""
        mean = self.of(kind).mean
        if end == "answered" or (end == "given up" and seconds > 0.9 * mean):
            for key in (kind, None):
                self._known.setdefault(key, RunningMean()).add(seconds if end == "answered" else seconds + mean)

    def of(self, kind: Kind) -> RunningMean:
        return self._known.get(kind, self._known[None])


class Crowding:
    """How much longer a kind takes with more requests inside: measured with few and with many, linear between."""

    def __init__(self) -> None:
        self._few = RunningMean(), RunningMean()
        self._many = RunningMean(), RunningMean()

    def add(self, inside: float, seconds: float) -> None:
        """Count an answer that took so many seconds with so many requests inside on average."""
        for mean, value in zip(self._few if inside < _FEW else self._many, (inside, seconds), strict=True):
            mean.add(value)

    def room(self, callers: int) -> float:
        """Requests that may be inside so that each takes at most `callers` times as long as alone.

        One for each caller until it is known what few take, then no limit until it is known what many take.
        """
        (few, short), (many, long) = self._few, self._many
        if few.count < _ENOUGH:
            return callers
        if many.count < _ENOUGH or long.mean <= short.mean:
            return math.inf
        slope = (long.mean - short.mean) / (many.mean - few.mean)
        alone = short.mean - slope * (few.mean - 1)
        return max(callers, 1 + (callers - 1) * alone / slope)


class Turn:
    """A turn: `granted` is done once it may enter the engine; its result is whether it goes before bulk work."""

    def __init__(self, line: "_Line", kind: Kind, realtime: bool) -> None:
        self.line = line
        self.kind = kind
        self.realtime = realtime
        self.granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.charged = 0.0  # engine seconds that its caller was charged in advance
        self.entered: float | None = None  # value of `EngineTurns._work` when it entered the engine
        self.begun = 0.0  # the same by the clock
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

    def charge(self, seconds: float) -> None:
        self.used += seconds / self.caller.weight


class EngineTurns:
    """Grants turns; belongs to one event loop. `batch` requests run together in the engine."""

    def __init__(self, batch: int, clock: Callable[[], float]) -> None:
        self._batch = batch
        self._alone = batch + max(1, batch // 4)
        self._clock = clock
        self._costs = Costs()
        self._crowding: dict[Kind, Crowding] = {}
        self._busy: dict[str, _Line] = {}
        # Callers without requests, in the order in which they left: seconds used, time of leaving.
        self._absent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._inside: set[Turn] = set()
        self._least = 0.0  # smallest `used` of busy callers; it never decreases
        self._work = 0.0  # engine seconds used by a hypothetical request that was inside all the time
        self._at = clock()

    def join(self, caller: Caller, kind: Kind, *, realtime: bool = False) -> Turn:
        """Start to wait for a turn; the caller must `leave` it."""
        self._advance()
        line = self._busy.get(caller.id)
        if line is None:
            used, _ = self._absent.pop(caller.id, (0.0, 0.0))
            line = self._busy[caller.id] = _Line(caller, max(used, self._least))
        turn = Turn(line, kind, realtime)
        (line.realtime if realtime else line.bulk).append(turn)
        line.waiting[kind] += 1
        self._grant()
        return turn

    def leave(self, turn: Turn, end: End, result: object = None) -> None:
        """End a turn, or the wait for it. Idempotent."""
        if turn.left:
            return
        turn.left = True
        self._advance()
        line = turn.line
        if turn.entered is None:
            turn.granted.cancel()
            (line.realtime if turn.realtime else line.bulk).remove(turn)
            line.waiting[turn.kind] -= 1
        else:
            self._inside.remove(turn)
            line.inside -= turn.kind.parts
            each, seconds = self._work - turn.entered, self._at - turn.begun
            metrics = getattr(result, "metrics", None) or Metrics()
            # A question with choices may have several requests in the engine at the same time, one for each.
            together = (metrics.encode_s + metrics.prefill_s + metrics.decode_s) / (seconds or math.inf)
            used = each * max(turn.kind.parts, min(self._batch, together))
            line.charge(used - turn.charged)
            if end == "answered" and each and seconds / each <= self._batch:  # else it also waited inside
                self._crowding.setdefault(turn.kind, Crowding()).add(seconds / each, seconds)
            self._costs.add(turn.kind, used, end)
        self._least = max(self._least, min(other.used for other in self._busy.values()))
        if not (line.inside or line.queue):
            del self._busy[line.caller.id]
            self._absent[line.caller.id] = line.used, self._at
            if len(self._absent) > _MOST_ABSENT:
                self._absent.popitem(last=False)
        self._grant()

    def expected_s(self, caller: Caller, kind: Kind | None = None) -> float:
        """Return an upper estimate of the seconds to the answer of one more request; without a kind, until it enters.

        A caller without open requests gets 0: if an estimate refused every request, no measurement would correct it.
        """
        line = self._busy.get(caller.id)
        if line is None:
            return 0.0
        self._advance()
        cost = 0.0 if kind is None else self._cost(kind)
        mean = self._sum_of(line.waiting)
        variance = sum(self._costs.of(each).variance_of_sum(count) for each, count in line.waiting.items())
        if mean:
            most = (mean + cost) / caller.weight
            others = (other for other in self._busy.values() if other is not line)
            factor = 1 + sum(min(self._sum_of(other.waiting), most * other.caller.weight) for other in others) / mean
            mean, variance = mean * factor, variance * factor**2
        if kind is not None:
            # Of a request of many parts, as many count as of a caller that fills the engine alone.
            sharing = sum(min(turn.kind.parts, self._alone) for turn in self._inside) / kind.parts + 1
            mean += cost * sharing
            variance += self._costs.of(kind).variance_of_sum(1) * sharing**2
        return _MARGIN * (mean + _SPREADS * math.sqrt(variance))

    def next_s(self, caller: Caller) -> float:
        """Return about how often, in seconds, a request of the caller is answered at the current load."""
        self._advance()
        if not self._inside:
            return 0.0
        weights = sum(line.caller.weight for line in self._busy.values())
        mean = self._sum_of(Counter(turn.kind for turn in self._inside)) / len(self._inside)
        return mean * max(1.0, weights / caller.weight)

    def _advance(self) -> None:
        now = self._clock()
        if self._inside:
            self._work += (now - self._at) / self._parts_inside
        self._at = now

    @property
    def _parts_inside(self) -> int:
        return sum(turn.kind.parts for turn in self._inside)

    def _grant(self) -> None:
        while (line := self._next()) is not None and self._has_room(line):
            turn = line.queue.popleft()
            line.waiting[turn.kind] -= 1
            turn.entered, turn.begun = self._work, self._at
            turn.charged = self._costs.of(turn.kind).mean
            within_lead = all(line.used - other.used <= _LEAD_S for other in self._busy.values())
            line.charge(turn.charged)
            line.inside += turn.kind.parts
            self._inside.add(turn)
            if not turn.granted.done():  # else its task was cancelled and is about to leave
                turn.granted.set_result(turn.realtime and within_lead)

    def _next(self) -> _Line | None:
        def rank(line: _Line) -> tuple[float, int]:
            return line.used - _LEAD_S * bool(line.realtime), line.inside

        return min((line for line in self._busy.values() if line.queue), key=rank, default=None)

    def _has_room(self, line: _Line) -> bool:
        """Whether the next request of the caller whose turn it is may enter the engine."""
        if not line.inside or line.realtime:
            return len(self._inside) < 2 * self._batch  # counts requests: one of many parts keeps no other out
        inside, parts = self._parts_inside, line.queue[0].kind.parts
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
        if any(line.inside + parts <= other.inside * line.caller.weight / other.caller.weight for other in others):
            return True
        crowding = self._crowding.setdefault(line.queue[0].kind, Crowding())
        return inside + reserved + parts <= crowding.room(1 + (len(others) or 1))

    def _cost(self, kind: Kind) -> float:
        """Cost of a request: at least what those of its kind inside have used so far."""
        used = [self._work - turn.entered for turn in self._inside if turn.kind == kind and turn.entered is not None]
        return max(self._costs.of(kind).mean, kind.parts * sum(used) / len(used) if used else 0.0)

    def _sum_of(self, kinds: Counter[Kind]) -> float:
        return sum(self._cost(kind) * count for kind, count in kinds.items())

"""Open-loop load: requests come whether earlier ones are answered or not, as from users who know nothing of others."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.serve.images import Stock
from bench.serve.wire import Client, Reply

ANSWERED, REFUSED = 200, 429


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of the load.

    Attributes:
        due: When it was to be sent, in seconds since the load began: its client waits from then on.
        late: Seconds by which the generator sent it too late.
        first: Seconds from `due` to the first byte of the reply's body.
        waited: Seconds from `due` to the end of the reply.
        status: Of the reply.
    """

    due: float
    late: float
    first: float
    waited: float
    status: int

    @property
    def ended(self) -> float:
        """When the reply was complete, in seconds since the load began."""
        return self.due + self.waited


@dataclass(frozen=True, slots=True)
class Level:
    """What became of the load at one rate.

    Attributes:
        rate: Requests per second, on average.
        settle_s: Seconds at the beginning that do not count.
        seconds: That count, behind those.
        visits: Every request, those that do not count among them.
        busy: Cores that the generator took.
    """

    rate: float
    settle_s: float
    seconds: float
    visits: Sequence[Visit]
    busy: float

    @property
    def counted(self) -> list[Visit]:
        """Requests that were due after the settling time."""
        return [visit for visit in self.visits if visit.due >= self.settle_s]

    @property
    def answered(self) -> list[Visit]:
        """Counted requests that were answered."""
        return [visit for visit in self.counted if visit.status == ANSWERED]

    @property
    def refused(self) -> list[Visit]:
        """Counted requests that were refused with 429."""
        return [visit for visit in self.counted if visit.status == REFUSED]

    @property
    def failures(self) -> int:
        """Number of counted requests that ended otherwise."""
        return len(self.counted) - len(self.answered) - len(self.refused)

    @property
    def goodput(self) -> float:
        """Answers per second after the settling time, whenever their requests arrived."""
        ends = (visit.ended for visit in self.visits if visit.status == ANSWERED)
        return sum(self.settle_s <= end < self.settle_s + self.seconds for end in ends) / self.seconds


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield the times of a Poisson process in seconds, reproducible by seed; `rate` is arrivals per second."""
    chance = random.Random(seed)
    now = chance.expovariate(rate)
    while now < seconds:
        yield now
        now += chance.expovariate(rate)


async def play(
    client: Client,
    stock: Stock,
    rate: float,
    *,
    settle_s: float,
    seconds: float,
    seed: int,
    tell: Callable[[], object] = lambda: None,
) -> Level:
    """Send requests at a rate per second, first for `settle_s` uncounted seconds; wait for all replies.

    `tell` is called after each reply.
    """
    visits: list[Visit] = []
    begun, worked = time.perf_counter(), time.process_time()

    async def visit(due: float) -> None:
        request = stock.take()
        reply = await client.ask(request)
        stock.give_back(request, answered=reply.status == ANSWERED)
        visits.append(_visit(reply, due, begun))
        tell()

    async with asyncio.TaskGroup() as group:
        for due in arrivals(rate, settle_s + seconds, seed):
            if (wait := begun + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(visit(due))
    busy = (time.process_time() - worked) / (time.perf_counter() - begun)
    return Level(rate, settle_s, seconds, sorted(visits, key=lambda one: one.due), busy)


def _visit(reply: Reply, due: float, begun: float) -> Visit:
    at = begun + due
    return Visit(due, max(0.0, reply.began - at), reply.first - at, reply.ended - at, reply.status)

"""Simulated replicas: the production cache manager and placement on a virtual clock, seeded.

Images are asked about by Zipf's law. A replica answers a few requests at a time, and those that find their image in the
cache are quicker. A hit is a request whose whole image was there; what an image's first request misses is not avoidable
by anybody, and counts as a miss.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.ray.placement import Placement
from photonlite.request import Request, SamplingSettings, Token
from photonlite.sequence import Sequence

PREFIX, PROMPT, BUDGET, PAGE = 730, 12, 20, 16
"""Positions of BOS and image, tokens of a prompt and of an answer at most, positions of a page."""
IMAGE_PAGES: Final = -(-PREFIX // PAGE)
_NOTHING: Any = None  # for arguments that the cache does not read

Choose = Callable[[str, Placement], str]
"""Returns the replica for an image."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests, and how long a replica takes for them.

    Attributes:
        images: How many there are; the k-th is asked about in proportion to 1 / k.
        requests: How many are sent.
        busy: Offered load, as a share of what the replicas could answer if no image were in any cache.
        hit_s: Seconds that a request takes whose image is in the cache.
        miss_s: Seconds that any other takes.
        together: Requests that a replica answers at a time.
    """

    images: int = 200
    requests: int = 20_000
    busy: float = 0.7
    hit_s: float = 0.1
    miss_s: float = 0.2
    together: int = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    hits: float  # share of requests
    wait_s: float  # until the answer, on average
    wait_p99_s: float
    busiest: float  # requests of the busiest replica, relative to the mean


@dataclass
class NamedImage:
    """All that the cache knows of an image."""

    key: str
    size: None = None
    crops: None = None
    failure: None = None

    def request_crops(self, pages: object = None) -> None: ...
    def drop_crops(self) -> None: ...


@dataclass
class Replica:
    manager: CacheManager
    together: int
    waiting: deque[tuple[float, Sequence]] = field(default_factory=deque)
    running: int = 0
    answered: int = 0


def simulate(
    traffic: Traffic, replicas: int, images_each: int, choose: Choose, placement: Placement, seed: int
) -> Outcome:
    """Send all requests; `images_each` is how many images a replica's cache holds beside those being answered."""
    chance, numbers = random.Random(seed), itertools.count()
    room = images_each + 2 * traffic.together
    there = {
        str(name): Replica(CacheManager(PagePool(room * (IMAGE_PAGES + 1) + 1, PAGE)), traffic.together)
        for name in range(replicas)
    }
    placement.set_replicas(there)
    events: list[tuple[float, int, str, Sequence | None]] = []  # arrivals have no sequence
    for due in _arrivals(traffic, replicas, chance):
        heapq.heappush(events, (due, next(numbers), "", None))
    weights = [1 / (rank + 1) for rank in range(traffic.images)]
    asked = iter(chance.choices(range(traffic.images), weights, k=traffic.requests))
    waits: list[float] = []
    begun: dict[int, float] = {}
    hits = 0
    while events:
        now, _, name, sequence = heapq.heappop(events)
        if sequence is None:
            image = f"image {next(asked)}"
            name = choose(image, placement)
            placement.began(name)
            sequence = _sequence(next(numbers), image)
            begun[sequence.number] = now
            there[name].waiting.append((now, sequence))
        else:
            waits.append(now - begun.pop(sequence.number))
            _end(there[name], sequence)
            placement.ended(name)
        for one, hit in _start(there[name]):
            hits += hit
            ends = now + (traffic.hit_s if hit else traffic.miss_s)
            heapq.heappush(events, (ends, next(numbers), name, one))
    waits.sort()
    answered = [replica.answered for replica in there.values()]
    mean = sum(answered) / replicas
    return Outcome(hits / len(waits), sum(waits) / len(waits), waits[int(0.99 * len(waits))], max(answered) / mean)


def _arrivals(traffic: Traffic, replicas: int, chance: random.Random) -> Iterator[float]:
    rate = traffic.busy * replicas * traffic.together / traffic.miss_s
    now = 0.0
    for _ in range(traffic.requests):
        now += chance.expovariate(rate)
        yield now


def _sequence(number: int, image: str) -> Sequence:
    prompt = tuple(Token(number * PROMPT + place) for place in range(PROMPT))  # no two alike: the image alone is shared
    request = Request("query", prompt, _NOTHING, BUDGET, SamplingSettings())
    return Sequence(number, request, _NOTHING, PREFIX, NamedImage(image))


def _start(replica: Replica) -> Iterator[tuple[Sequence, bool]]:
    """Admit what has room; yields each sequence and whether its image was in the cache."""
    while replica.waiting and replica.running < replica.together:
        _, sequence = replica.waiting.popleft()
        replica.manager.name(sequence)
        hit = replica.manager.image_state(sequence.images[0]) == "ready"
        admitted = replica.manager.admit(sequence)
        if admitted is None:
            raise AssertionError("the pool is made to hold all that run and all images of the cache")
        replica.running += 1
        yield sequence, hit


def _end(replica: Replica, sequence: Sequence) -> None:
    replica.manager.confirm(sequence)
    sequence.finalized = True
    replica.manager.release(sequence)
    replica.running -= 1
    replica.answered += 1


def round_robin() -> Choose:
    turn = itertools.count()
    return lambda image, placement: str(next(turn) % len(placement.open))


def least_load(image: str, placement: Placement) -> str:
    return placement.order(None)[0]


def affinity(image: str, placement: Placement) -> str:
    return placement.order(image)[0]

"""Time what the engine's thread does about crowds: `python -m bench.policy.crowds`.

Requests by the thousand wait on a modelled device, beside eight that are decoded. Then all are cancelled, or all
expire, or they go on waiting while the others are decoded. Times are those that the host's processor works, for which
other processes do not count. What matters is the ratio of a row to the one before it: that of the requests, where each
costs the same.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence as ListLike
from random import Random

from bench.bubble.report import table
from bench.policy.__main__ import make_limits
from bench.policy.load import PREFIX, ROWS
from bench.policy.modelled import H200, WORD, ModelledRunner
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.engine.core import EngineCore
from photonlite.grammar.decoding.grammars import TextGrammar, Vocabulary
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

DECODED, COUNTS, TICKS = 8, (100, 1_000, 10_000), 200
_DEADLINE_S = 1e6
_VOCABULARY = Vocabulary(0, 1, 2, 3, 4, 5, any_id_continues=False)


class _Image:
    """An image that is never cut."""

    size = crops = failure = None

    def __init__(self, key: str) -> None:
        self.key = key

    def request_crops(self, pages: object = None) -> None:
        pass

    def drop_crops(self) -> None:
        pass


class _Deaf:
    """A sink that discards everything."""

    def on_token(self, token: Token) -> None:
        pass

    def on_finish(self, sequence: Sequence) -> None:
        pass


class Crowd:
    """An engine that decodes some requests while many others wait.

    Args:
        count: How many wait.
        realtime: Whether these come before others.
        images: Whether each is about an image of its own, which is never cut; else they wait for rows.
    """

    def __init__(self, count: int, *, realtime: bool = True, images: bool = True) -> None:
        self.runner = ModelledRunner(H200)
        cache = CacheManager(PagePool(80_000, 16))
        limits = make_limits(rows=ROWS if images else DECODED)
        self.core = EngineCore(Scheduler(cache, limits), self.runner, 2, clock=lambda: self.runner.now)
        self._numbers = itertools.count()
        for _ in range(DECODED):
            self._ask(tokens=100_000, realtime=realtime)
        for _ in range(6):
            self.core.tick()
        self.waiting = [self._ask(realtime=realtime, image=images) for _ in range(count)]
        for _ in range(6):
            self.core.tick()

    def cancel(self) -> float:
        """Return the seconds that cancelling all in any order takes, a tick after every 32 as in the engine's loop."""
        Random(0).shuffle(self.waiting)
        start = time.thread_time()
        for place, one in enumerate(self.waiting):
            self.core.cancel(one)
            if place % 32 == 31:
                self.core.tick()
        return time.thread_time() - start

    def expire(self) -> tuple[float, float]:
        """Return the seconds that it takes until all have expired, and those of the longest tick meanwhile."""
        self.runner.now += 2 * _DEADLINE_S
        ticks = [self.tick()]
        while len(self.core.open) > DECODED:
            ticks.append(self.tick())
        return sum(ticks), max(ticks)

    def tick(self) -> float:
        """Return the seconds that a tick takes."""
        start = time.thread_time()
        self.core.tick()
        return time.thread_time() - start

    def _ask(self, tokens: int = 9, *, realtime: bool, image: bool = False) -> Sequence:
        number = next(self._numbers)
        request = Request(
            "query",
            (Token(number), WORD),
            TextGrammar(_VOCABULARY, tokens),
            tokens,
            SamplingSettings(),
            realtime=realtime,
        )
        deadline = None if number < DECODED else _DEADLINE_S + self.runner.now
        about = _Image(str(number)) if image else None
        sequence = Sequence(number, request, _Deaf(), PREFIX if about else 1, about, deadline)
        self.core.scheduler.prepare(sequence)
        self.core.submit(sequence)
        return sequence


def main(arguments: ListLike[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy.crowds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="requests that wait")
    options = parser.parse_args(arguments)
    print(table(["waiting", "all cancelled (ms)", "all expired (ms)", "longest tick"], map(ended, options.counts)))
    print()
    print(table(["waiting", "for images (ms a tick)", "for rows"], map(waited, (0, *options.counts))))
    return 0


def ended(count: int) -> list[str]:
    """Write a row: what ending so many takes."""
    cancelled, (expired, longest) = Crowd(count).cancel(), Crowd(count).expire()
    return [f"{count:,}", *(f"{1e3 * seconds:.2f}" for seconds in (cancelled, expired, longest))]


def waited(count: int) -> list[str]:
    """Write a row: what a tick takes while so many wait, in the median."""
    medians = []
    for images in (True, False):
        crowd = Crowd(count, images=images)
        medians.append(sorted(crowd.tick() for _ in range(TICKS))[TICKS // 2])
    return [f"{count:,}", *(f"{1e3 * seconds:.3f}" for seconds in medians)]


if __name__ == "__main__":
    sys.exit(main())

"""Sequences that gave way and whose keys and values are kept in host memory until they go on. No torch.

```
running ── pages run out ──> leaving ── copied ──> swapped ── pages, a row ──> returning ── copied ──> running
                 │             pages and row stay                pages and row are there
                 └── cheaper to compute again ──> waiting
```

A page on its way out is not written, as its sequence has left the running ones with no step in flight; one on its way
in is not read, as its sequence is not among them yet. Either way sequence and pages stay bound until the copy's event.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from photonlite.batch import Transfer
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.scheduler.limits import Limits, faded
from photonlite.sequence import Sequence

if TYPE_CHECKING:
    from photonlite.scheduler.running import RunningSet


TURN = 8
"""Positions that a sequence computes, once it is back, before it gives way again. Real-time sequences that run beside a
bulk one get room for as many when its copy begins, so that they do not push it out before; twice as many each time
that they did all the same."""

_FORGOTTEN = 0.01
"""Share of a copy's time that is forgotten each time it is too long, as nothing is measured meanwhile."""


class GivenWay(NamedTuple):
    """What became of a sequence that had to give its pages back, and why; seconds by measured rates."""

    sequence: int
    way: str  # "swap" or "recompute"
    why: str
    swap_s: float  # to copy its pages out and in
    recompute_s: float  # to compute its positions again, and images that are in no cache


class SwapSpace:
    """Host memory for pages, and the sequences that have some there or on the way."""

    def __init__(
        self, running: "RunningSet", cache: CacheManager, limits: Limits, recompute_s: Callable[[Sequence], float]
    ) -> None:
        self._running = running
        self.places = PagePool(limits.swap_pages + 1, 1) if limits.swap_pages else None
        self.recompute_s = recompute_s
        self.page_s: float | None = None  # seconds to copy a page, a fading mean; None before the first copy
        self.swapped: list[Sequence] = []  # in host memory alone
        self.leaving: dict[Sequence, Transfer] = {}
        self.returning: dict[Sequence, Transfer] = {}
        self.new: list[Transfer] = []  # not yet handed to the executor
        self.given_way: list[GivenWay] = []  # not yet traced
        self._cache = cache
        self._places: dict[Sequence, list[int]] = {}  # of each of its pages, by position
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        """Walk all sequences that it has, ended ones among them while they are being copied."""
        return iter(self._places)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._places

    def has_swapped(self, *, realtime: bool) -> bool:
        return any(one.realtime == realtime for one in self.swapped)

    def chooses_swap(self, sequence: Sequence) -> bool:
        """Whether to keep what was computed for a sequence that gives way, by cost; notes why."""
        if self.places is None:
            return False
        pages = self._pages_of(sequence)
        swap_s, recompute_s = 2 * pages * (self.page_s or 0.0), self.recompute_s(sequence)
        if not 0 < sequence.num_computed_tokens == sequence.num_committed_tokens:
            why = "its prompt must start again"
        elif pages > self.places.free:
            why = f"it has {pages} pages, and host memory has room for {self.places.free}"
        elif swap_s > recompute_s:
            why = "computing it again takes less time than copying it"
            self.page_s = (1 - _FORGOTTEN) * (self.page_s or 0.0)
        else:
            self.given_way.append(GivenWay(sequence.number, "swap", "copying takes less time", swap_s, recompute_s))
            return True
        self.given_way.append(GivenWay(sequence.number, "recompute", why, swap_s, recompute_s))
        return False

    def send_out(self, sequence: Sequence) -> None:
        """Begin to copy a running sequence's pages to host memory; no step carries it, and it runs no more."""
        if self.places is None or sequence.inflight_refs or sequence in self._places:
            raise AssertionError(f"sequence {sequence.number} leaves while {sequence.inflight_refs} steps carry it")
        count = self._pages_of(sequence)
        places = self.places.allocate(count)
        if places is None:
            raise AssertionError(f"host memory has no {count} places, only {self.places.free}")
        self._running.sequences.remove(sequence)
        self._running.router.note_change()
        sequence.times.swaps += 1
        sequence.turn_room = 2 * sequence.turn_room if sequence.has_turn else TURN
        self._places[sequence] = places
        self.leaving[sequence] = self._transfer("out", sequence, tuple(sequence.pages[:count]), tuple(places))

    def first(self, *, realtime: bool) -> Sequence | None:
        """Return the first swapped sequence of a class."""
        return min((one for one in self.swapped if one.realtime == realtime), key=self._running.rank, default=None)

    def bring_back(self, *, realtime: bool, due: bool = False) -> bool:
        """Begin to copy the first swapped sequence of a class back, if it may run and its pages are there.

        A bulk one also waits for room for its turn beside real-time ones, for more the more often that was too little,
        unless no other may take it: then it is `due`.
        """
        running, one = self._running, self.first(realtime=realtime)
        resident = running.resident
        if one is None or not running.router.admits(one, resident, running.departing):
            return False
        urgent = [] if realtime else [other for other in resident if other.realtime and not other.finalized]
        room = 1 if not urgent else TURN if due else one.turn_room
        shared = self._cache.readmit(one, urgent, room)
        if shared is None:
            return False
        one.turn_end = one.num_computed_tokens + TURN
        running.router.note_start(one, resident)
        one.row = running.free_rows.pop()
        self.swapped.remove(one)
        places = self._places[one]
        pages = tuple(one.pages[shared : len(places)])
        self.returning[one] = self._transfer("in", one, pages, tuple(places[shared:]))
        return True

    def finish(self, transfer: Transfer) -> None:
        """Note that pages have been copied: a sequence has left, or runs again. What failed is computed again."""
        one, running, back = transfer.sequence, self._running, transfer.direction == "in"
        failed = transfer.failure is not None
        if transfer.pages and not failed:
            self.page_s = faded(self.page_s, transfer.device_s / len(transfer.pages))
        del (self.returning if back else self.leaving)[one]
        if back or failed or one.finalized:
            self.forget(one)
        if back and (failed or one.finalized):
            running.router.note_change()
        if one.finalized:
            running.release_ended(one)
            running.victims.clear()
        elif failed:
            running.start_again(one)
            one.times.preemptions += 1
        elif back:
            running.resume(one)
        else:
            running.release(one)
            self.swapped.append(one)

    def forget(self, sequence: Sequence) -> None:
        """Free the host memory of a sequence that no copy concerns."""
        if self.places is not None:
            self.places.release(self._places.pop(sequence))
        if sequence in self.swapped:
            self.swapped.remove(sequence)

    def take_new(self) -> list[Transfer]:
        new, self.new = self.new, []
        return new

    def take_choices(self) -> list[GivenWay]:
        choices, self.given_way = self.given_way, []
        return choices

    def _pages_of(self, sequence: Sequence) -> int:
        return self._cache.pages.pages_for(sequence.num_computed_tokens)

    def _transfer(
        self, direction: Literal["out", "in"], sequence: Sequence, pages: tuple[int, ...], places: tuple[int, ...]
    ) -> Transfer:
        if sequence.row is None:
            raise AssertionError(f"sequence {sequence.number} is copied {direction} without a row")
        transfer = Transfer(self._numbers, direction, sequence, sequence.row, pages, places, self._places[sequence][0])
        self._numbers += 1
        self.new.append(transfer)
        return transfer

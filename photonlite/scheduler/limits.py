"""What launches may hold and what they cost: fixed limits, and what is learned from measured steps."""

import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

from photonlite.config import RouterRule
from photonlite.scheduler.parts import PartTable

MAX_JOBS = 8
"""Images whose features are on the device at a time."""

REALTIME_JOBS = 2
"""Images of real-time requests beside these, so that none waits until a bulk image is done."""

MOST_BESIDE = 2048
"""Positions of a launch of prompts in the encoder's part of the card, unless one alone has more."""

_LAUNCHES_PER_MORE = 32
"""Successful launches before one may hold one crop or prompt more; more than an image has crops, so that an image
which had to start again is encoded to its end."""

_NEWEST = 0.2
"""The share of the newest measurement in a running mean: follows a change of clocks within some ten launches."""

_FORGOTTEN = 0.01
"""The share of what runs cost beyond a decode step that is forgotten each time they are refused."""

_LEAST_SPREAD = 0.01
"""Sizes must differ by a tenth or so before a line is fitted to them."""

_HELD_UP = 1.25
"""Times the running mean: as much of a decode step counts at most."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_batch: int  # sequences that run at a time, and rows of a launch
    pending_rows: int  # sequences that may have a row of the pending table, zombies among them
    max_prefill_tokens: int  # positions of a prefill launch; a single longer prompt goes alone
    max_crops: int  # of an encode launch
    max_jobs: int = MAX_JOBS  # images of bulk requests whose features are on the device at a time
    max_image_bytes: int = sys.maxsize  # copied by one launch to be cut on the device; a single larger image goes alone
    staged_pages: int = sys.maxsize  # stored ones on the device, whose prompts have not begun
    launch_budget_s: float = 0.004  # of encode and prefill launches between decode steps, while few sequences wait
    max_pause_s: float = 0.035  # the same, however many wait; `launch_budget_s` holds where that is longer
    max_positions: int = sys.maxsize  # of the longest sequence: what a page table has room for
    vocab_size: int = 2**31
    adapter_slots: int = 8  # adapters that are on the device at a time
    forced_runs: bool = True  # tokens that must follow are appended at once
    mixes: bool = False  # prompts ride with decode steps
    encodes_beside: bool = False  # images are encoded beside the other steps
    parts: PartTable | None = None  # then the encoder may have a part of the card, and prompts about its images too
    realtime_part: bool = False  # bulk images keep to that part while real-time requests are near; only with `parts`
    mixed_tokens: int | None = None  # of such a step; None for prompts that take `launch_budget_s` beside the rest
    router: RouterRule = "greedy"  # decides how many sequences run at a time
    swap_pages: int = 0  # of host memory, for sequences that gave their pages back
    router_budget: float = 1.0  # positions that these may need, as a share of the cache; see `scheduler.router`


class PauseBudget(NamedTuple):
    """What is left of the time between two decode steps."""

    left_s: float = math.inf  # seconds that the next launch may take; infinite where no sequence is held up
    fresh: bool = True  # that launch is the first, which goes however long it takes: a crop or prompt cannot be split
    over: bool = False  # a decode step comes first


class LaunchModel:
    """The cost of launches of one kind, and how many crops or prompts (`most`) one may hold.

    A launch has a fixed cost, and a cost for each crop or position: the slope of a line through fading measurements.
    `most` is halved when memory was short, then slowly raised again.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.per_unit: float | None = None  # seconds; None before the first measurement; an even share of equal sizes
        self.observed = 0  # measurements so far
        self._limit = most
        self._since_shrink = 0
        # Running means of the size, the seconds, the square of the size, and the product of both.
        self._means: tuple[float, float, float, float] | None = None

    def observe(self, size: int, seconds: float) -> None:
        self.observed += 1
        self._since_shrink += 1
        if self._since_shrink % _LAUNCHES_PER_MORE == 0:
            self.most = min(self._limit, self.most + 1)
        new = (float(size), seconds, float(size * size), size * seconds)
        old = self._means or new
        x, y, xx, xy = self._means = (
            old[0] + _NEWEST * (new[0] - old[0]),
            old[1] + _NEWEST * (new[1] - old[1]),
            old[2] + _NEWEST * (new[2] - old[2]),
            old[3] + _NEWEST * (new[3] - old[3]),
        )
        spread = xx - x * x
        slope = (xy - x * y) / spread if spread > _LEAST_SPREAD * xx else 0.0
        # Noise may turn the line over; no unit costs more than its even share of a launch.
        self.per_unit = slope if 0 < slope < y / x else y / x

    def shrink(self, tried: int) -> None:
        """Launch less at a time: memory was short for a launch of `tried` crops or prompts."""
        self.most = max(1, tried // 2)
        self._since_shrink = 0

    def cost(self, size: int) -> float:
        """Return the seconds that a launch takes, its fixed part included; infinite while nothing was measured."""
        if not self.per_unit:
            return math.inf
        fixed = self._means[1] - self._means[0] * self.per_unit if self._means else 0.0
        return max(0.0, fixed) + size * self.per_unit

    def least(self, size: int) -> float:
        """Return the seconds that units take in any launch; 0 while nothing was measured."""
        return size * (self.per_unit or 0.0)

    def within(self, seconds: float) -> int:
        """Return the units that fit into a time: at least one, and one while nothing was measured."""
        return max(1, int(seconds / self.per_unit)) if self.per_unit else 1

    def within_shares(self, seconds: float) -> int:
        """Return the units that fit if each costs its even share of the last launches, the fixed cost included.

        For launches that are nearly all of one size: the slope through such sizes, which `within` takes, is noise, and
        where it is next to nothing any number fits.
        """
        if self._means is None or not self._means[1]:
            return 1
        return max(1, int(seconds * self._means[0] / self._means[1]))


class RunCost:
    """What a launch of runs takes, in decode steps, at least 1: a fading mean of measurements.

    While runs are refused nothing is measured, and the figure falls slowly, so that they are tried again.
    """

    def __init__(self) -> None:
        self.steps = 1.0
        self._decode_s: float | None = None
        self._run_s: float | None = None

    def observe_decode(self, seconds: float) -> None:
        # One step that was held up must not make those after it look as if prompts had cost them nothing.
        usual = self._decode_s
        self._decode_s = faded(usual, seconds if usual is None else min(seconds, _HELD_UP * usual))

    def observe_run(self, seconds: float) -> None:
        self._run_s = faded(self._run_s, seconds)
        if self._decode_s:
            self.steps = max(1.0, self._run_s / self._decode_s)

    def beyond_decode(self, seconds: float) -> float:
        """Return what prompts added to a step that took so long: at least a tenth of it, as decode steps vary."""
        return max(seconds - self.decode_s, 0.1 * seconds)

    @property
    def decode_s(self) -> float:
        """Seconds of a decode step; 0 while none was measured."""
        return self._decode_s or 0.0

    def refuse(self) -> None:
        self.steps -= _FORGOTTEN * (self.steps - 1.0)


def faded(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)

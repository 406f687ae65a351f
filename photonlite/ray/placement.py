"""Which replica answers a request: the one that its key belongs to, unless that has too much to do.

Keys belong to replicas by rendezvous hashing: a key ranks all replicas by a hash of both, so that one that leaves or
joins moves only its own keys, and what it passes on is spread over all others (Thaler and Ravishankar, "Using
name-based mappings to increase hit rates", 1998). A replica passes requests on while it has more open than a multiple
of the mean (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018).
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Target:
    """Which replica a request is for: the first argument of each call of a replica's methods.

    `replica` names one. If that is gone, another gets the request, and refuses what only that one could have done.
    """

    key: str | None = None
    replica: str | None = None


def ranked(key: str, replicas: Iterable[str]) -> list[str]:
    """Return the replicas in the order in which a key prefers them."""
    return sorted(replicas, key=lambda replica: hashlib.blake2b(f"{replica}/{key}".encode(), digest_size=8).digest())


class Placement:
    """Ranks replicas for requests, and counts the requests open at each; belongs to one event loop.

    With several of these, each over its own part of the requests, the bound holds for their sum.
    """

    def __init__(self, load_factor: float, least_load: int) -> None:
        self._load_factor = load_factor
        self._least_load = least_load
        self._numbers = count()
        self.open: dict[str, int] = {}

    def set_replicas(self, replicas: Iterable[str]) -> None:
        """Set who may be asked; those that stay keep their counts."""
        self.open = {replica: self.open.get(replica, 0) for replica in replicas}

    def began(self, replica: str) -> None:
        if replica in self.open:
            self.open[replica] += 1

    def ended(self, replica: str) -> None:
        if self.open.get(replica):  # the request may have begun before the replica was taken off and put back
            self.open[replica] -= 1

    @property
    def limit(self) -> int:
        """Open requests from which on a replica passes further ones on."""
        mean = (sum(self.open.values()) + 1) / max(1, len(self.open))
        return max(self._least_load, math.ceil(self._load_factor * mean))

    def order(self, key: str | None) -> list[str]:
        """Return all replicas, the one to ask first; without a key, the least busy one."""
        if key is None:
            shuffled = ranked(str(next(self._numbers)), self.open)  # ties must not all go to one replica
            return sorted(shuffled, key=self.open.__getitem__)
        limit = self.limit
        return sorted(ranked(key, self.open), key=lambda replica: self.open[replica] >= limit)

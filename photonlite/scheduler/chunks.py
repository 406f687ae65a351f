"""Chunked prefill: prompts that are computed in several launches. No torch.

```
launch         1                  2                      3: the last one
positions   [0 ... 512)       [512 ... 1024)         [1024 ... 1500)
needs       embeddings        embeddings             embeddings, which are freed then
samples     nothing           nothing                the first token
cache       blocks are being built                   their last pages are saved; its commit makes the blocks ready
```

A cut is made between any two positions but those that attend to each other in both directions. Keys and values before
it lie in pages like those of any prefix, so that the next launch resumes there.
"""

import sys
from typing import NamedTuple

from photonlite.batch import BatchItem, EncodeJob, PageCopy
from photonlite.cache.manager import CacheManager
from photonlite.sequence import Sequence


class Admitted(NamedTuple):
    """Rows of prompts that begin in a launch, and the pages to copy before and after it."""

    rows: tuple[BatchItem, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    saves: tuple[PageCopy, ...] = ()


class _Rest(NamedTuple):
    jobs: tuple[EncodeJob, ...]  # of its images
    saves: tuple[PageCopy, ...]  # after its last launch


class UnfinishedPrompts:
    """Running sequences whose prompts are not all launched, and what the rest of them needs."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._rests: dict[Sequence, _Rest] = {}
        self._dropped: list[EncodeJob] = []

    @property
    def positions(self) -> int:
        """Positions that are still to be launched."""
        return sum(one.num_tokens - one.num_computed_tokens for one in self._rests)

    def begin(self, sequence: Sequence, jobs: tuple[EncodeJob, ...], saves: tuple[PageCopy, ...]) -> None:
        self._rests[sequence] = _Rest(jobs, saves)

    def advance(
        self, sequence: Sequence, room: int = sys.maxsize, *, begins: bool = False
    ) -> tuple[BatchItem, tuple[PageCopy, ...]]:
        """Schedule the next chunk of a sequence: at most `room` positions, but at least one, and a block as a whole.

        Returns its row, and the pages to save after the launch.
        """
        start = sequence.num_computed_tokens
        left = sequence.num_tokens - start
        count = min(left, max(room, least_count(sequence, start)))
        sequence.cut = cut = count < left
        index = sequence.next_index if sequence.samples and not cut else None
        sequence.num_computed_tokens += count
        rest = self._rests.get(sequence) if cut else self._rests.pop(sequence, None)
        jobs = () if rest is None else rest.jobs
        saves = () if rest is None or cut else rest.saves
        return BatchItem(sequence, start, count, index, jobs, begins, cut), saves

    def give_up(self, sequence: Sequence) -> None:
        """Forget a prompt whose rest will not be launched: its blocks never get ready, and its images are freed."""
        rest = self._rests.pop(sequence, None)
        if rest is not None:
            self._cache.withdraw(sequence)
            self._dropped += rest.jobs

    def take_dropped(self) -> list[EncodeJob]:
        """Return images of prompts that were given up: the device frees their embeddings."""
        dropped, self._dropped = self._dropped, []
        return dropped


def least_count(sequence: Sequence, start: int) -> int:
    """Return how many positions a launch computes at least that begins at `start`."""
    return max(1, sequence.block - start)

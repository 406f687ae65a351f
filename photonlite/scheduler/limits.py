"""What launches may hold: fixed limits, smaller ones after memory was short, and which requests fit at all."""

import operator
import sys
from dataclasses import dataclass

from photonlite.cache.manager import CacheManager
from photonlite.errors import CapacityError
from photonlite.request import Token
from photonlite.sequence import Sequence

MAX_JOBS = 8
"""Images whose features are on the device at a time."""

REALTIME_JOBS = 2
"""Images of real-time requests beside these, so that none waits until a bulk image is done."""

_LAUNCHES_PER_MORE = 32
"""Successful launches before one may hold one crop or prompt more; more than an image has crops, so that an image
which had to start again is encoded to its end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What launches may hold."""

    max_batch: int  # sequences that run at a time, and rows of a launch
    pending_rows: int  # sequences that may have a row of the pending table, zombies among them
    max_prefill_tokens: int  # positions of a prefill launch; a single longer prompt goes alone
    max_crops: int  # of an encode launch
    max_jobs: int = MAX_JOBS  # images of bulk requests whose features are on the device at a time
    max_image_bytes: int = sys.maxsize  # copied by one launch to be cut on the device; a single larger image goes alone
    launch_budget_s: float = 0.004  # of encode and prefill launches between decode steps, while few sequences wait
    max_pause_s: float = 0.035  # the same, however many wait; `launch_budget_s` holds where that is longer
    max_positions: int = sys.maxsize  # of the longest sequence: what a page table has room for
    vocab_size: int = 2**31

    def pause_s(self, waiting: int, decoding: int) -> float:
        """Return the seconds that encode and prefill launches may take between two decode steps.

        The more sequences wait for each that is held up, the longer: large launches, and decode steps of many rows,
        cost the device less, which serves all of them.
        """
        return max(self.launch_budget_s, min(self.max_pause_s, self.launch_budget_s * waiting / decoding))

    def check_fits(self, sequence: Sequence, cache: CacheManager) -> None:
        """Check that a sequence could run alone, and that a step can carry its prompt.

        Raises:
            CapacityError: It would need more positions or pages than there are.
            ValueError: Its prompt is missing, superfluous, or holds tokens that would fail every request of a step.
        """
        with_image = sequence.image is not None
        if sequence.samples != bool(sequence.prompt):
            raise ValueError("a request either has a prompt and produces tokens, or asks for its image alone")
        if with_image and sequence.prefix_len != cache.prefix_length:
            raise ValueError(f"an image takes {cache.prefix_length} positions, not {sequence.prefix_len}")
        for token in sequence.prompt:
            self._check_token(token)
        if sequence.longest > self.max_positions:
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, but the model's context has "
                f"{self.max_positions}: lower max_tokens or max_objects, or shorten the text"
            )
        if not cache.fits(sequence.longest, with_image):
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, which takes "
                f"{cache.pages_needed(sequence.longest, with_image)} pages of {cache.pages.page_size}, but the KV "
                f"cache has {cache.pages.usable}: lower max_tokens or max_objects, or raise kv_cache_bytes"
            )

    def _check_token(self, token: Token) -> None:
        values = token.values
        if not 0 <= operator.index(token.id) < self.vocab_size:
            raise ValueError(f"a prompt has id {token.id}, but the vocabulary has {self.vocab_size}")
        if len(values) > 2 or not all(isinstance(value, float | int) for value in values):
            raise ValueError(f"token {token.id} of a prompt carries {values!r:.60}, not up to two numbers")


class Allowance:
    """How many crops or prompts one launch may hold: halved when memory was short, then slowly raised again."""

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._launches = 0

    def shrink(self, tried: int) -> None:
        """Halve: memory was short for a launch of so many."""
        self.now = max(1, tried // 2)
        self._launches = 0

    def count_success(self) -> None:
        self._launches += 1
        if self._launches % _LAUNCHES_PER_MORE == 0:
            self.now = min(self._most, self.now + 1)

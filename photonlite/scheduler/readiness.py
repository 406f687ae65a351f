"""What stands between a waiting sequence and its first launch: pages that can never be enough, crops, positions."""

import operator
from dataclasses import dataclass

from photonlite.cache.manager import CacheManager
from photonlite.errors import CapacityError
from photonlite.request import Token
from photonlite.scheduler.encoding import Encodings
from photonlite.scheduler.policy import Limits, Rates
from photonlite.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Need:
    """Work in front of a first token.

    Attributes:
        crops: To be encoded.
        positions: To be prefilled.
    """

    crops: int
    positions: int

    def least_s(self, rates: Rates) -> float:
        """Give the seconds that it takes at the least if nothing else runs, as far as that was measured."""
        return rates.crops.least(self.crops) + rates.positions.least(self.positions)


class Readiness:
    """Knows of each waiting sequence whether it may run, and what that takes.

    Args:
        cache: Knows which images need no encoding.
        encodings: Knows which are encoded.
        limits: What the machine has.
    """

    def __init__(self, cache: CacheManager, encodings: Encodings, limits: Limits) -> None:
        self._cache = cache
        self._encodings = encodings
        self._limits = limits

    def check_fits(self, sequence: Sequence) -> None:
        """Check that a sequence could run alone.

        Raises:
            CapacityError: It could not.
            ValueError: It produces tokens and has no prompt to predict them from, or the reverse; or its prompt holds
                what a step could not carry.
        """
        cache, limit = self._cache, self._limits.max_positions
        if sequence.samples != bool(sequence.prompt):
            raise ValueError("a request either has a prompt and produces tokens, or asks for its image alone")
        if sequence.image is not None and sequence.prefix_len != cache.prefix_length:
            raise ValueError(f"an image takes {cache.prefix_length} positions, not {sequence.prefix_len}")
        for token in sequence.prompt:
            _check_token(token, self._limits.vocab_size)
        if sequence.longest > limit:
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, but the model's context has "
                f"{limit}: lower max_tokens or max_objects, or shorten the text"
            )
        if not cache.fits(sequence.longest, sequence.image is not None):
            needed = cache.pages_needed(sequence.longest, sequence.image is not None)
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, which takes {needed} pages of "
                f"{cache.pages.page_size}, but the KV cache has {cache.pages.usable}: lower max_tokens or "
                "max_objects, or raise kv_cache_bytes"
            )

    def ready(self, sequence: Sequence) -> bool:
        """Tell whether a sequence's image, if it has one, is there."""
        key = sequence.image_key
        if key is None:
            return True
        state = self._cache.image_state(key)
        if state == "missing":
            return self._encodings.done(key)
        return state == "ready"

    def positions(self, sequence: Sequence) -> int:
        """Give the positions that a prefill launch computes for a sequence, at most."""
        key = sequence.image_key
        cached = key is not None and self._cache.image_state(key) == "ready"
        return sequence.num_tokens - (sequence.prefix_len if cached else 0)

    def need(self, sequence: Sequence) -> Need | None:
        """Give what a sequence needs before its first token; None where work has been spent on it already.

        Raises:
            Exception: What its image raises.
        """
        if sequence.times.admitted or self._encodings.begun(sequence):
            return None
        return Need(self._encodings.crops_missing(sequence), self.positions(sequence))


def _check_token(token: Token, vocab_size: int) -> None:
    """Check what a launch writes for a token: what is wrong with one would fail everybody's step."""
    values = token.values
    if not 0 <= operator.index(token.id) < vocab_size:
        raise ValueError(f"a prompt has id {token.id}, but the vocabulary has {vocab_size}")
    if len(values) > 2 or not all(isinstance(value, float | int) for value in values):
        raise ValueError(f"token {token.id} of a prompt carries {values!r:.60}, not up to two numbers")

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.grammar.automata.tables import words
from photonlite.grammar.decoding.mask import CACHED_ROWS, MaskCache
from photonlite.request import Allowed

IDS = st.lists(st.integers(0, 69), min_size=1, unique=True).map(tuple)
ALLOWED = st.one_of(st.builds(Allowed, ids=IDS), st.builds(Allowed, suppressed=IDS), st.just(Allowed()))


def bits(masks: MaskCache, allowed: Allowed, vocab_size: int) -> list[bool]:
    """Bit by bit, as a device reads it; what was in the row before must not matter."""
    row = np.full(words(vocab_size), -1, np.int32)
    masks.fill(allowed, row)
    return [bool(int(row[i // 32]) >> (i % 32) & 1) for i in range(32 * len(row))]


def test_words_hold_the_vocabulary() -> None:
    assert [words(size) for size in (1, 32, 33, 51200)] == [1, 1, 2, 1600]


@settings(deadline=None)
@given(st.lists(ALLOWED, min_size=1, max_size=4))
def test_bits_say_what_is_permitted_and_nothing_past_the_vocabulary(several: list[Allowed]) -> None:
    masks = MaskCache(70)

    for allowed in (*several, *several):  # the second time from the cache
        assert bits(masks, allowed, 70) == [i < 70 and allowed.permits(i) for i in range(96)]


def test_a_row_that_is_kept_cannot_be_changed_through_what_was_filled() -> None:
    masks, allowed = MaskCache(40), Allowed((3,))
    row = np.zeros(2, np.int32)
    masks.fill(allowed, row)
    row[:] = -1

    assert bits(masks, allowed, 40) == [i == 3 for i in range(64)]


def test_a_new_object_at_a_freed_address_gets_its_own_mask() -> None:
    masks = MaskCache(64)

    for number in range(4 * CACHED_ROWS):
        # Each is freed unless the cache holds it, and the next one may then live at the same address.
        wanted = number % 64
        assert bits(masks, Allowed((wanted,)), 64)[wanted]


def test_the_cache_is_bounded() -> None:
    masks, kinds = MaskCache(64), [Allowed((n % 64,)) for n in range(3 * CACHED_ROWS)]
    row = np.zeros(2, np.int32)
    for index in range(len(kinds)):
        masks.fill(kinds[index], row)

    references = [sys.getrefcount(allowed) for allowed in kinds]

    held = [count > references[0] for count in references]  # the first is long gone
    assert 0 < sum(held) <= CACHED_ROWS
    assert held[-1]


@pytest.mark.parametrize("allowed", [Allowed((3, 64)), Allowed((-1, 2)), Allowed(suppressed=(64,))])
def test_ids_that_do_not_exist_are_refused(allowed: Allowed) -> None:
    with pytest.raises(ValueError, match="vocabulary of 64"):
        MaskCache(64).fill(allowed, np.zeros(2, np.int32))

"""Depth 2 = depth 1 = mixed batches = one request at a time, on real arithmetic, for two thousand random requests."""

from collections import Counter

import pytest

from photonlite.config import KvDtype, Precision
from tests.equality import WAYS, check_scene

COUNT = 25


def check(seeds: range, kv_dtype: KvDtype = "auto") -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        # Both depths of each scene; its other ways take turns, as each is compared with the oracle by itself.
        seen.update(check_scene(seed, COUNT, kv_dtype, (*WAYS[:2], *WAYS[2 + seed % 2 :: 2])))
    # Scenes that never cancel, pre-empt or hit would prove nothing.
    assert all(
        seen[name] > len(seeds) // 8
        for name in ("cancelled", "preemptions", "swaps", "zombies", "hits", "encodes", "forced", "mixed")
    ), seen


def test_some_random_requests_equal_the_oracle_at_both_depths() -> None:
    check_scene(0, 10, "auto")


@pytest.mark.long
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_in_8_and_4_bits_give_equal_answers_in_any_batch(weights: Precision) -> None:
    check_scene(1, 10, weights=weights)


@pytest.mark.long(first=True)
@pytest.mark.parametrize("part", range(8))
def test_two_thousand_random_requests_equal_the_oracle_at_both_depths(part: int) -> None:
    check(range(10 * part, 10 * (part + 1)))


@pytest.mark.long(first=True)
def test_an_fp8_cache_gives_equal_answers_at_both_depths_for_any_prefill_split() -> None:
    # Counts change with the timing of threads: these scenes swap a dozen times, where two are asked for.
    check(range(2040, 2050), "fp8")

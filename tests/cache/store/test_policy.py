import math

import pytest

from photonlite.cache.store.policy import TierPolicy

Costs = tuple[float | None, float | None]


def policy(costs: Costs = (None, None), *, memory: float = 50e9, disk: float = 5e9, **options: bool) -> TierPolicy:
    """Make a policy for tiers of so many bytes a second, and an image of Moondream 2: 9 crops, 730 positions."""
    made = TierPolicy(lambda: costs, **options)
    made.note_read("memory", 10**9, 10**9 / memory)
    made.note_read("disk", 10**9, 10**9 / disk)
    made.note_units("embeddings", 9, 3_000_000)
    made.note_units("pages", 730, 143_000_000)
    return made


H200 = (0.0112 / 9, 0.0035 / 730)
LAPTOP = (1.0, 0.01)


def test_on_a_fast_card_embeddings_pay_everywhere_and_pages_not_on_a_disk() -> None:
    found = policy(H200)

    assert found.pays("embeddings", "memory")
    assert found.pays("embeddings", "disk")
    assert not found.pays("pages", "disk")
    # Reading pages is a little quicker than computing them, but keeping them costs a copy too.
    assert found.pays("pages", "memory")
    assert not found.repays("pages", "memory")
    assert found.saved("embeddings", "memory") / found.saved("pages", "memory") > 30


def test_on_a_cpu_everything_pays() -> None:
    found = policy(LAPTOP, memory=5e9, disk=4e8)
    assert all(found.repays(kind, tier) for kind in ("embeddings", "pages") for tier in ("memory", "disk"))


def test_a_slow_disk_is_left_alone() -> None:
    found = policy(H200, disk=1e8)
    assert not found.pays("embeddings", "disk")
    assert found.pays("embeddings", "memory")


@pytest.mark.parametrize("copies", [False, True])
def test_what_was_not_measured_is_worth_it_but_for_pages_of_a_card(copies: bool) -> None:
    found = policy(copies=copies)

    assert found.computing("embeddings") is found.computing("pages") is None
    assert found.saved("pages", "disk") == math.inf
    assert found.pays("pages", "disk")
    assert found.repays("embeddings", "memory")
    assert found.repays("pages", "memory") is not copies
    assert TierPolicy(lambda: LAPTOP).pays("embeddings", "disk")  # no image was seen yet


def test_few_pages_do_not_pay_on_a_card_where_putting_them_back_takes_as_long() -> None:
    for copies in (False, True):
        found = TierPolicy(lambda: (1e-3, 1e-7), copies=copies)  # 0.1 ms for 1,000 positions
        found.note_read("memory", 10**9, 0.02)
        found.note_units("pages", 1000, 10**6)
        assert found.pays("pages", "memory") is not copies

    found.note_units("pages", 10**7, 10**10)
    assert found.pays("pages", "memory")


def test_ranks_keep_no_pages() -> None:
    found = policy(LAPTOP, pages=False)
    assert not found.pays("pages", "memory")
    assert not found.repays("pages", "memory")
    assert found.pays("embeddings", "memory")


def test_rates_follow_what_is_measured() -> None:
    found = TierPolicy(lambda: LAPTOP)
    found.note_read("disk", 100, 1.0)
    for _ in range(30):
        found.note_read("disk", 100, 0.5)

    assert found.rates["disk"] == pytest.approx(200, rel=0.01)
    assert "memory" not in found.rates


def test_a_tier_that_is_refused_before_it_was_measured_stays_unmeasured() -> None:
    found = TierPolicy(lambda: LAPTOP)
    found.forget_read("disk")
    assert found.rates == {}
    found.note_read("disk", 100, 1.0)

    assert found.rates["disk"] == 100

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.cache.pages import PagePool
from tests.cache.sequences import check_pool


def test_the_scratch_page_is_never_handed_out_and_never_freed():
    pool = PagePool(4, 8)
    assert sorted(pool.allocate(pool.usable) or []) == [1, 2, 3]
    for change in (pool.retain, pool.release):
        with pytest.raises(AssertionError, match="page 0"):
            change([0])
    assert pool.free == 0


def test_too_large_an_allocation_takes_nothing():
    pool = PagePool(4, 8)
    assert pool.allocate(4) is None
    assert pool.free == 3
    assert pool.allocate(0) == []


def test_a_page_is_free_when_its_last_reference_is_released():
    pool = PagePool(4, 8)
    (page,) = pool.allocate(1) or []
    pool.retain([page])
    pool.release([page])
    assert (pool.refcount(page), pool.free) == (1, 2)
    pool.release([page])
    assert (pool.refcount(page), pool.free) == (0, 3)


def test_a_free_page_can_be_neither_released_nor_retained():
    pool = PagePool(4, 8)
    (page,) = pool.allocate(1) or []
    pool.release([page])
    for change in (pool.retain, pool.release):
        with pytest.raises(AssertionError, match=f"page {page}"):
            change([page])
    check_pool(pool, {})


@pytest.mark.parametrize(("positions", "pages"), [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2)])
def test_a_partly_used_page_counts_as_a_page(positions: int, pages: int):
    assert PagePool(4, 8).pages_for(positions) == pages


@pytest.mark.parametrize(("total", "size"), [(1, 8), (4, 0)])
def test_a_pool_without_room_is_refused(total: int, size: int):
    with pytest.raises(AssertionError, match=f"{total} pages of {size}"):
        PagePool(total, size)


@pytest.mark.parametrize(("owners", "page"), [({}, 1), ({1: 2, 2: 1}, 1), ({1: 1}, 2), ({1: 1, 2: 1, 3: 1}, 3)])
def test_the_check_names_the_page_whose_owners_are_not_as_counted(owners: dict[int, int], page: int):
    pool = PagePool(4, 8)
    assert pool.allocate(2) == [1, 2]
    check_pool(pool, {1: 1, 2: 1})
    with pytest.raises(AssertionError, match=f"page {page} "):
        check_pool(pool, owners)


@pytest.mark.parametrize("page", [-1, 0, 4])
def test_the_check_refuses_owners_of_pages_that_are_not_handed_out(page: int):
    with pytest.raises(AssertionError, match=f"page {page} "):
        check_pool(PagePool(4, 8), {page: 1})


@pytest.mark.parametrize("free", [[2], [1, 2], [3, 3, 2], [0, 2, 3]])
def test_the_check_reports_a_corrupt_free_list(free: list[int]):
    pool = PagePool(4, 8)
    assert pool.allocate(1) == [1]
    pool._free = free
    with pytest.raises(AssertionError, match="page"):
        check_pool(pool, {1: 1})


@given(st.lists(st.tuples(st.sampled_from(("allocate", "retain", "release")), st.integers(0, 9)), max_size=60))
def test_after_any_history_every_page_has_the_owners_that_were_counted(history: list[tuple[str, int]]):
    pool, owners = PagePool(8, 4), Counter[int]()
    for action, number in history:
        held = sorted(owners)
        if action == "allocate":
            free = pool.free
            pages = pool.allocate(number)
            assert (pages is None) == (number > free)
            assert not owners.keys() & set(pages or [])
            owners.update(pages or [])
        elif held:
            page = held[number % len(held)]
            getattr(pool, action)([page])
            owners[page] += 1 if action == "retain" else -1
            owners += Counter()
        check_pool(pool, owners)
        assert pool.free == pool.usable - len(owners)

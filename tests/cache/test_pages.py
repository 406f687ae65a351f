from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.cache.pages import PagePool, PrefixBlock, PrefixCache, image_key, page_key, text_root
from photonlite.request import Token
from tests.cache.sequences import check_pool

tokens = st.builds(Token, st.integers(0, 2), st.lists(st.sampled_from((0.0, 0.5, 1.0)), max_size=2).map(tuple))


def add(
    cache: PrefixCache, pool: PagePool, name: bytes, parent: PrefixBlock | None = None, pages: int = 1
) -> PrefixBlock:
    """A ready block that one sequence uses and whose pages only the cache owns."""
    taken = pool.allocate(pages)
    assert taken is not None
    block = PrefixBlock(name, parent, tuple(taken), None, end=(parent.end if parent else 0) + 4, state="ready")
    cache.insert(block)
    return block


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


# ---- prefixes


@given(st.lists(tokens, min_size=3, max_size=3), st.lists(tokens, min_size=3, max_size=3))
def test_pages_share_a_key_exactly_when_their_inputs_are_equal(one: list[Token], other: list[Token]):
    same = [(token.id, token.values) for token in one] == [(token.id, token.values) for token in other]
    assert (page_key(text_root(), one) == page_key(text_root(), other)) == same


def test_sampling_details_are_not_part_of_a_key():
    assert page_key(text_root(), [Token(1, (0.5,), 0.3, (0.9,))]) == page_key(text_root(), [Token(1, (0.5,))])


def test_a_key_stands_for_the_whole_chain_from_its_root():
    page = [Token(1), Token(2)]
    roots = [text_root(), text_root("a"), image_key(""), image_key("a"), image_key("b"), page_key(text_root(), page)]
    assert len({page_key(root, page) for root in roots} | set(roots)) == 2 * len(roots) - 1


def test_a_chain_is_followed_as_far_as_it_is_ready_and_short_enough():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    first = add(cache, pool, b"1")
    second = add(cache, pool, b"2", first)
    third = add(cache, pool, b"3", second)
    keys = [b"1", b"2", b"3", b"4"]
    assert cache.ready_chain(keys, 12) == [first, second, third]
    assert cache.ready_chain(keys, 11) == [first, second]
    second.state = "building"
    assert cache.ready_chain(keys, 12) == [first]
    assert cache.ready_chain([b"0", *keys], 12) == []


def test_the_least_recently_used_leaf_goes_first():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    root = add(cache, pool, b"root")
    old, recent = add(cache, pool, b"old", root), add(cache, pool, b"recent", root)
    other = add(cache, pool, b"other")
    cache.touch([root])
    cache.leave([root, old])
    cache.leave([root, recent])
    cache.leave([other])
    cache.touch([root, old])
    cache.leave([root, old])

    def present() -> set[bytes]:
        return {block.key for block in (root, old, recent, other) if cache.lookup(block.key)}

    order = []
    while before := present():
        cache.evict(1)
        order += before - present()
    assert order == [b"recent", b"other", b"old", b"root"]
    assert (cache.evictions, cache.owners().total(), cache.idle_pages, pool.free) == (4, 0, 0, 8)


def test_eviction_stops_as_soon_as_enough_pages_are_free():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    blocks = [add(cache, pool, bytes([number]), pages=2) for number in range(3)]
    for block in blocks:
        cache.leave([block])
    cache.evict(0)
    assert cache.idle_pages == 6
    cache.evict(3)
    assert (pool.free, cache.idle_pages, cache.owners().total(), cache.evictions) == (6, 2, 2, 2)
    with pytest.raises(AssertionError, match="3 pages"):
        cache.evict(3)
    assert pool.free == 6


def test_blocks_in_use_cannot_be_evicted():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    root = add(cache, pool, b"root")
    leaf = add(cache, pool, b"leaf", root)
    cache.leave([leaf])
    cache.evict(cache.idle_pages)
    assert cache.lookup(b"leaf") is None
    assert cache.lookup(b"root") is root
    with pytest.raises(AssertionError, match="1 users"):
        cache.remove(root)


def test_an_evicted_page_with_another_owner_is_reported():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    block = add(cache, pool, b"block")
    cache.leave([block])
    pool.retain([block.pages[0]])
    with pytest.raises(AssertionError, match="in use"):
        cache.evict(1)


def test_a_block_is_neither_removed_under_its_children_nor_entered_twice():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    root = add(cache, pool, b"root")
    leaf = add(cache, pool, b"leaf", root)
    cache.leave([root])
    with pytest.raises(AssertionError, match="1 children"):
        cache.remove(root)
    with pytest.raises(AssertionError, match="twice"):
        cache.insert(leaf)


def test_idle_pages_exclude_a_chain_in_use():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    root, other = add(cache, pool, b"root", pages=2), add(cache, pool, b"other")
    leaf = add(cache, pool, b"leaf", root)
    cache.leave([root, leaf])
    cache.leave([other])
    assert (cache.idle_pages, cache.idle_pages_without([root]), cache.idle_pages_without([root, leaf])) == (4, 2, 1)
    cache.touch([root])
    assert cache.idle_pages == 2
    assert cache.idle_pages_without([root, leaf]) == 1


def test_owners_count_pages_and_tails_of_all_blocks():
    pool = PagePool(9, 4)
    cache = PrefixCache(pool)
    pages = pool.allocate(3)
    assert pages is not None
    cache.insert(PrefixBlock(b"image", None, tuple(pages[:2]), pages[2], end=10))
    add(cache, pool, b"text")
    check_pool(pool, cache.owners())
    assert cache.owners().total() == 4

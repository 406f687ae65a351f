"""Plain sequences, and checks of the page pool, for tests of the cache."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from photonlite.batch import PageCopy
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool, image_key
from photonlite.request import Request, SamplingSettings, Token
from photonlite.sequence import Sequence

_numbers = itertools.count()
# For arguments that the cache does not read.
_NOTHING: Any = None


class NamedAdapter(NamedTuple):
    """All that the engine knows of an adapter."""

    name: str
    key: str


def adapter_of(key: str) -> NamedAdapter | None:
    return NamedAdapter(key, key) if key else None


@dataclass
class NamedImage:
    """All that the cache knows of an image."""

    key: str
    size: None = None
    crops: None = None
    failure: None = None

    def request_crops(self, pages: object = None) -> None:
        """Do nothing."""

    def drop_crops(self) -> None: ...


def sequence(
    prompt: Iterable[int | Token],
    image: str | None = None,
    *,
    prefix: int = 1,
    budget: int = 8,
    kept: bool = False,
    adapter: str = "",
) -> Sequence:
    """A waiting sequence; `prefix` is BOS and image tokens."""
    tokens = tuple(token if isinstance(token, Token) else Token(token) for token in prompt)
    request = Request("test", tokens, _NOTHING, budget, SamplingSettings(), kept=kept, adapter=adapter_of(adapter))
    named = None if image is None else NamedImage(image)
    return Sequence(next(_numbers), request, _NOTHING, prefix if named else 1, named)


def manager_of(usable: int, page_size: int = 4, **options: bool) -> CacheManager:
    return CacheManager(PagePool(usable + 1, page_size), **options)


def state_of(manager: CacheManager, image: str) -> str:
    """The state of the block of a leading image."""
    block = manager.prefix.lookup(image_key(image))
    return "missing" if block is None else block.state


class Admission(NamedTuple):
    """What `CacheManager.admit` returns."""

    start: int
    copies: tuple[PageCopy, ...] = ()
    saves: tuple[PageCopy, ...] = ()


def admit(manager: CacheManager, sequence: Sequence) -> Admission | None:
    manager.name(sequence)
    admission = manager.admit(sequence)
    return None if admission is None else Admission(*admission)


def admitted(manager: CacheManager, sequence: Sequence) -> Admission:
    admission = admit(manager, sequence)
    assert admission is not None
    return admission


def served(manager: CacheManager, sequence: Sequence) -> Admission:
    """Admit a sequence, compute its prompt, and release it."""
    admission = admitted(manager, sequence)
    manager.confirm(sequence)
    manager.release(sequence)
    return admission


def forget(manager: CacheManager) -> None:
    """Evict every unused block."""
    manager.prefix.evict(manager.prefix.idle_pages)


def check_pool(pool: PagePool, owners: Mapping[int, int]) -> None:
    """Raise unless `owners`, the references that owners hold by page, agree with the counts and the free list."""
    for page in owners:
        if not 0 < page < pool.total:
            raise AssertionError(f"page {page} is owned, but only 1 to {pool.usable} are handed out")
    counts, free = pool._counts, set(pool._free)
    for page, count in enumerate(counts):
        if owners.get(page, 0) != count:
            raise AssertionError(f"page {page} has {owners.get(page, 0)} owners, but its count is {count}")
    for page in free:
        if page == 0 or counts[page]:
            raise AssertionError(f"page {page} is in the free list, but has {counts[page]} owners")
    owned = pool.total - counts.count(0)
    if len(free) != pool.free or len(free) + owned != pool.usable:
        raise AssertionError(f"{pool.free} free + {owned} owned pages are not {pool.usable} usable ones")


def check(manager: CacheManager, sequences: Iterable[Sequence]) -> None:
    """Compare the counts of all pages with their owners."""
    check_pool(manager.pages, manager.prefix.owners() + Counter(page for each in sequences for page in each.pages))

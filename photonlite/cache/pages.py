"""Page ids and their reference counts; the keys and values themselves lie on the device.

```
page      0         1 .. total - 1
          scratch   usable: free (count 0) or owned (count = sequences + cached blocks + holds)
```
"""

from collections.abc import Iterable, Mapping


class PagePool:
    """Allocates pages, and frees each when its last reference is released.

    Page 0 is scratch: padding rows of a batch write there, and it is never owned.
    """

    def __init__(self, total: int, page_size: int) -> None:
        if total < 2 or page_size < 1:
            raise AssertionError(f"{total} pages of {page_size} positions: at least 2 and 1 are needed")
        self.total = total
        self.page_size = page_size
        self._counts = [0] * total
        # Allocated from the end: the page that was freed last is used first, so that runs can be replayed.
        self._free = list(range(total - 1, 0, -1))

    @property
    def usable(self) -> int:
        """Pages that can be owned: all but the scratch page."""
        return self.total - 1

    @property
    def free(self) -> int:
        return len(self._free)

    def refcount(self, page: int) -> int:
        return self._counts[page]

    def pages_for(self, positions: int) -> int:
        """Return how many pages hold that many positions."""
        return -(-positions // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """Take pages with one owner each; None, with nothing changed, if there are not enough."""
        left = len(self._free) - count
        if left < 0:
            return None
        pages = self._free[left:]
        del self._free[left:]
        pages.reverse()
        for page in pages:
            self._counts[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Count one more owner of each page."""
        counts = self._counts
        for page in pages:
            if counts[page] < 1:
                raise AssertionError(f"page {page} is retained, but nobody owns it")
            counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one owner less of each page; a page without owners is free."""
        counts = self._counts
        for page in pages:
            left = counts[page] - 1
            if left < 0:
                raise AssertionError(f"page {page} is released, but nobody owns it")
            counts[page] = left
            if left == 0:
                self._free.append(page)

    def check(self, owners: Mapping[int, int]) -> None:
        """Raise unless `owners`, the references that owners hold by page, agree with the counts and the free list."""
        for page in owners:
            if not 0 < page < self.total:
                raise AssertionError(f"page {page} is owned, but only 1 to {self.usable} are handed out")
        for page, count in enumerate(self._counts):
            if owners.get(page, 0) != count:
                raise AssertionError(f"page {page} has {owners.get(page, 0)} owners, but its count is {count}")
        free = set(self._free)
        for page in free:
            if page == 0 or self._counts[page]:
                raise AssertionError(f"page {page} is in the free list, but has {self._counts[page]} owners")
        owned = self.total - self._counts.count(0)
        if len(free) != len(self._free) or len(free) + owned != self.usable:
            raise AssertionError(f"{self.free} free + {owned} owned pages are not {self.usable} usable ones")

"""Page ids and their reference counts; the keys and values themselves lie on the device.

```
page      0         1 .. total - 1
          scratch   usable: free (count 0) or owned (count = sequences + cached blocks + holds)
```
"""

from collections.abc import Iterable


class PagePool:
    """Allocates pages and counts references. Page 0 is scratch: padding rows write there, and it is never owned."""

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

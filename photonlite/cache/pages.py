"""Page ids and their reference counts; the keys and values themselves lie on the device.

```
page      0         1 .. total - 1
          scratch   usable: free (count 0) or owned (count = sequences + cached blocks + holds)
```
"""

from collections.abc import Iterable, Mapping


class PagePool:
    """Hands out pages and takes them back when their last owner lets go.

    Page 0 is scratch: padding rows of a batch write there, and nobody ever owns it.

    Args:
        total: Pages in the device's cache, the scratch page included.
        page_size: Positions in a page.

    Raises:
        AssertionError: There is no usable page, or a page holds no position.
    """

    def __init__(self, total: int, page_size: int) -> None:
        if total < 2 or page_size < 1:
            raise AssertionError(f"{total} pages of {page_size} positions: at least 2 and 1 are needed")
        self.total = total
        self.page_size = page_size
        self._counts = [0] * total
        # Handed out from the end: the page that came back last goes first, so that runs can be replayed.
        self._free = list(range(total - 1, 0, -1))

    @property
    def usable(self) -> int:
        """Pages that can be owned: all but the scratch page."""
        return self.total - 1

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def refcount(self, page: int) -> int:
        """Tell how many owners a page has."""
        return self._counts[page]

    def pages_for(self, positions: int) -> int:
        """Tell how many pages hold that many positions."""
        return -(-positions // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """Hand out pages with one owner each; None, with nothing changed, if there are not so many."""
        left = len(self._free) - count
        if left < 0:
            return None
        pages = self._free[left:]
        del self._free[left:]
        pages.reverse()
        for page in pages:
            self._counts[page] = 1
        return pages

    def retain(self, page: int) -> None:
        """Count one more owner.

        Raises:
            AssertionError: Nobody owns the page.
        """
        self.retain_all((page,))

    def release(self, page: int) -> None:
        """Count one owner less; the page is free when there is none left.

        Raises:
            AssertionError: Nobody owns the page.
        """
        self.release_all((page,))

    def retain_all(self, pages: Iterable[int]) -> None:
        """Count one more owner of each page; raises as `retain` does."""
        counts = self._counts
        for page in pages:
            if counts[page] < 1:
                raise AssertionError(f"page {page} is retained, but nobody owns it")
            counts[page] += 1

    def release_all(self, pages: Iterable[int]) -> None:
        """Count one owner less of each page; raises as `release` does."""
        counts = self._counts
        for page in pages:
            left = counts[page] - 1
            if left < 0:
                raise AssertionError(f"page {page} is released, but nobody owns it")
            counts[page] = left
            if left == 0:
                self._free.append(page)

    def check(self, owners: Mapping[int, int]) -> None:
        """Compare the counts with what the owners themselves say.

        Args:
            owners: For each page, how many references its owners hold; pages left out have none.

        Raises:
            AssertionError: A page has other owners than its count says, or is free and owned at once, or neither.
        """
        for page in owners:
            if not 0 < page < self.total:
                raise AssertionError(f"page {page} is owned, but only 1 to {self.usable} are handed out")
        said = [0] * self.total
        for page, count in owners.items():
            said[page] = count
        if said != self._counts:
            page = next(page for page in range(self.total) if said[page] != self._counts[page])
            raise AssertionError(f"page {page} has {said[page]} owners, but its count is {self._counts[page]}")
        free = set(self._free)
        for page in free:
            if page == 0 or said[page]:
                raise AssertionError(f"page {page} is in the free list, but has {said[page]} owners")
        owned = self.total - said.count(0)
        if len(free) != len(self._free) or len(free) + owned != self.usable:
            raise AssertionError(f"{self.free} free + {owned} owned pages are not {self.usable} usable ones")

"""The order in which several processes take tests."""

from typing import Any

import pytest

from tests.conftest import _spread


class Item:
    def __init__(self, number: int) -> None:
        self.number = number

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [pytest.mark.long(first=self.number % 5 == 4).mark]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_each_worker_begins_with_its_share_of_the_tests_of_minutes(workers: int) -> None:
    items: list[Any] = [Item(number) for number in range(32)]

    left = [item.number for item in _spread(items, workers)]

    assert sorted(left) == list(range(32))
    for worker in range(workers):  # pytest-xdist gives each as many in a row
        share = [left.pop(0) for _ in range(len(left) // (workers - worker))]
        long = [number % 5 == 4 for number in share]
        assert sum(long) >= 6 // workers
        assert long == sorted(long, reverse=True)

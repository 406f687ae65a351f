"""Sizes of all tables behind an object, which must not grow with the number of ended requests."""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

_TABLES = (dict, list, set, frozenset, tuple, deque)
_ATOMS = (int, float, str, bytes, bool, type(None))  # most entries: they lead to no table
_UNSET = object()


def table_sizes(root: object) -> dict[str, int]:
    """Return the size of every list, set, dictionary and queue of photonlite's objects.

    Args:
        root: Where to begin; its attributes are followed, and the entries of its tables, as far as their classes are
            photonlite's.

    Returns:
        Entries of each table by its path, such as "scheduler.policy.bulk._ordered".
    """
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    pending: deque[tuple[str, object]] = deque([("", root)])
    while pending:
        path, value = pending.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _TABLES):
            if not isinstance(value, tuple | frozenset):
                sizes[path] = len(value)
            entries = value.values() if isinstance(value, Mapping) else value
            inside = f"{path}[]"
            pending += [(inside, entry) for entry in list(entries) if type(entry) not in _ATOMS]
        elif type(value).__module__.startswith("photonlite."):
            prefix = f"{path}." if path else ""
            pending += [(prefix + name, held) for name, held in _attributes(value) if type(held) not in _ATOMS]
    return sizes


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return tables that have grown, or are new and not empty, with both sizes."""
    return {path: (before.get(path, 0), size) for path, size in after.items() if size > before.get(path, 0)}


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    for name in sorted({*getattr(value, "__dict__", ()), *_slots(type(value))}):
        held = getattr(value, name, _UNSET)
        if held is not _UNSET:
            yield name, held


@cache
def _slots(kind: type) -> frozenset[str]:
    listed = [getattr(base, "__slots__", ()) for base in kind.__mro__]
    return frozenset(name for slots in listed for name in ((slots,) if isinstance(slots, str) else slots))

import gc

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from photonlite.cache.store.arena import HostArena

Array = npt.NDArray[np.uint8]


def arena(size: int) -> HostArena:
    return HostArena(np.zeros(size, np.uint8))


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 3000), st.integers(0, 9)), max_size=40))
def test_arrays_do_not_overlap_and_all_memory_comes_back(steps: list[tuple[bool, int, int]]) -> None:
    memory, held = arena(8192), list[tuple[int, Array]]()
    for number, (takes, size, place) in enumerate(steps):
        if takes and (found := memory.take(size)) is not None:
            assert found.size == size
            found[:] = number
            held.append((number, found))
        elif not takes and held:
            held.pop(place % len(held))
        assert all((one == value).all() for value, one in held)
    held.clear()
    found = None

    whole = memory.take(8192)
    assert whole is not None
    assert memory.take(1) is None


def test_a_view_holds_the_memory_of_its_array() -> None:
    memory = arena(1024)
    found = memory.take(1024)
    assert found is not None
    view = found[10:20].view(np.int8)
    del found
    gc.collect()

    assert memory.take(1) is None
    del view
    assert memory.take(1024) is not None


def test_no_memory_gives_no_arrays() -> None:
    assert arena(0).take(1) is None
    assert arena(100).take(101) is None
    assert arena(100).take(100) is not None

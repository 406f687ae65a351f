import gc
import weakref

import pytest

from photonlite.pauses import short_collections


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("unfrozen")
def test_what_is_there_is_not_walked_and_later_garbage_is_found() -> None:
    before, kept = gc.get_threshold(), Node()
    with short_collections():
        assert gc.get_threshold()[0] > before[0]
        assert not any(one is kept for one in gc.get_objects())
        garbage = weakref.ref(Node())
        gc.collect()
        assert garbage() is None

    assert any(one is kept for one in gc.get_objects())
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("unfrozen")
def test_a_block_that_fails_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), short_collections():
        raise KeyError

    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_what_the_caller_has_frozen_stays_frozen() -> None:
    frozen = gc.get_freeze_count()
    assert frozen > 0  # the tests' own modules

    with short_collections():
        pass

    assert gc.get_freeze_count() >= frozen

import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Iterator

import pytest

from photonlite import pauses
from photonlite.pauses import short_collections, short_turns
from photonlite.request import Token


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
def test_tokens_of_open_requests_start_no_full_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_YOUNG", 100)  # Python's own thresholds would start one at 12,000 tokens then

    with short_collections():
        before = gc.get_stats()[2]["collections"]
        tokens = [Token(number) for number in range(40_000)]
        assert gc.get_stats()[2]["collections"] == before

    assert tokens


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


@pytest.fixture
def usual_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pauses, "_before", [])  # other tests' engines may be there
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-3)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("usual_turns")
def test_turns_are_short_until_the_last_of_several_blocks_has_ended() -> None:
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(short_turns())
    second.enter_context(short_turns())
    assert sys.getswitchinterval() < 1e-3

    first.close()
    assert sys.getswitchinterval() < 1e-3
    second.close()
    assert sys.getswitchinterval() == pytest.approx(5e-3, rel=0.02)


@pytest.mark.usefixtures("usual_turns")
def test_a_shorter_interval_of_the_caller_stays() -> None:
    sys.setswitchinterval(1e-5)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(1e-5, rel=0.1)
    assert sys.getswitchinterval() == pytest.approx(1e-5, rel=0.1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("usual_turns")
def test_a_forked_process_has_the_interval_from_before_its_parents_blocks() -> None:
    with short_turns(), short_turns():
        child = os.fork()
        if child == 0:
            os._exit(round(1e4 * sys.getswitchinterval()))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 50

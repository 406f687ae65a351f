import threading

import pytest

from photonlite.device.threads import in_passing


def test_work_is_done_elsewhere_and_its_thread_is_gone() -> None:
    before = threading.active_count()

    assert in_passing(threading.get_ident) != threading.get_ident()
    assert threading.active_count() == before


def test_what_work_raises_is_raised_here() -> None:
    def fail() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        in_passing(fail)

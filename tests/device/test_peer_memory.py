import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from photonlite.device import peer_memory
from photonlite.device.peer_memory import PeerMemory
from tests.guard import GUARD


class Place:
    """A store whose readers wait for a value."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, name: str, value: str) -> None:
        with self._changed:
            self._values[name] = value.encode()
            self._changed.notify_all()

    def get(self, name: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self._values, GUARD)
            return self._values[name]


class Driver:
    """Hands out numbers as memory; what is open is counted."""

    held = 0

    def allocate(self, size: int) -> int:
        Driver.held += 1
        return 1

    def handle_of(self, pointer: int) -> bytes:
        return b"handle"

    def open(self, handle: bytes) -> int:
        if not handle:
            raise peer_memory._DriverError("the other rank has no memory")
        Driver.held += 1
        return 2

    def leave(self, pointer: int) -> None:
        Driver.held -= 1

    free = leave


class ShortDriver(Driver):
    def allocate(self, size: int) -> int:
        raise peer_memory._DriverError("cuMemAlloc_v2 returned 2")


class PrivateDriver(Driver):
    def handle_of(self, pointer: int) -> bytes:
        raise peer_memory._DriverError("cuIpcGetMemHandle returned 801")


@pytest.mark.parametrize("failing", [ShortDriver, PrivateDriver])
@pytest.mark.parametrize("unlucky", [0, 2])
def test_one_rank_without_memory_leaves_all_without_and_nothing_is_held(
    failing: type[Driver], unlucky: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drivers, place = threading.local(), Place()
    monkeypatch.setattr(peer_memory, "_Driver", lambda: drivers.kind())
    monkeypatch.setattr(Driver, "held", 0)

    def meet(rank: int) -> object:
        drivers.kind = failing if rank == unlucky else Driver
        return PeerMemory.open(place, rank, 3, 64, torch.device("cpu"))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(meet, range(3)))

    assert found == [None, None, None]
    assert Driver.held == 0
    assert f"memory of rank {unlucky} is not shared" in caplog.text


def test_a_machine_without_the_library_is_told_as_a_failure_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(peer_memory.ctypes, "CDLL", missing)
    peer_memory._library.cache_clear()

    with pytest.raises(peer_memory._DriverError, match="libcuda"):
        peer_memory._Driver().allocate(64)

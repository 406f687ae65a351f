import gc
from typing import Any, Literal

import pytest
import torch

from photonlite.batch import Transfer
from photonlite.config import EngineConfig
from photonlite.device.names import open_device
from photonlite.errors import CapacityError, SettingsError
from photonlite.kernels.columns import PENDING_COLUMNS
from photonlite.kernels.reference.attention import FP8, indexable
from photonlite.runner.buffers import PagedCache
from photonlite.runner.swap import HostPages, lock_pages, swap_places
from tests.engine.fakes import Bench, ends_at
from tests.runner.cached import PAGE, SHAPE
from tests.tiny import CPU

PAGES = 12


def transfer(direction: Literal["out", "in"], row: int, pages: tuple[int, ...], places: tuple[int, ...]) -> Transfer:
    bench = Bench(ends_at(3))
    bench.ask()
    return Transfer(0, direction, bench.sequences[0], row, pages, places, first=places[0])


def filled(dtype: torch.dtype) -> tuple[PagedCache, list[torch.Tensor]]:
    scales = ((1.0, 1.0),) * SHAPE.layers if dtype == FP8 else ()
    cache = PagedCache(SHAPE, PAGES, PAGE, CPU, dtype, scales)
    kept = []
    for numbers in (cache.keys, cache.values):
        numbers.copy_(torch.randn(numbers.shape).to(dtype))
        kept.append(indexable(numbers).clone())
    return cache, kept


@pytest.mark.parametrize("staged", [None, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, FP8])
def test_pages_come_back_to_other_pages_as_they_were(dtype: torch.dtype, staged: int | None) -> None:
    cache, (keys, values) = filled(dtype)
    pending = torch.arange(4 * PENDING_COLUMNS, dtype=torch.int32).reshape(4, -1)
    host = HostPages(cache, pending, 8, staged)
    host.move(transfer("out", 2, (5, 3, 9, 1), (2, 3, 7, 8)))
    for numbers in (cache.keys, cache.values):
        indexable(numbers).zero_()
    host.move(transfer("in", 0, (2, 4, 6, 8), (2, 3, 7, 8)))

    for numbers, before in ((cache.keys, keys), (cache.values, values)):
        assert torch.equal(indexable(numbers)[:, [2, 4, 6, 8]], before[:, [5, 3, 9, 1]])
        assert not indexable(numbers)[:, [0, 1, 3, 5, 7, 9, 10, 11]].any()
    assert pending[0].tolist() == [6, 7, 8]
    assert pending[1].tolist() == [3, 4, 5]


class Runtime:
    """CUDA's, as far as memory of the host is concerned."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        if not self.code:
            self.locked[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked[address]
        return 0


class Owner:
    pass


def test_memory_is_locked_in_its_own_size_as_long_as_its_owner_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    owner, tensor = Owner(), torch.empty(1000, 3, dtype=torch.int32)
    lock_pages(tensor, owner)
    assert runtime.locked == {tensor.data_ptr(): 12_000}

    del owner
    gc.collect()
    assert runtime.locked == {}


def test_memory_that_cannot_be_locked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(code=2))
    with pytest.raises(RuntimeError, match="error 2"):
        lock_pages(torch.empty(8), Owner())


@pytest.mark.parametrize("staged", [None, 2])
def test_two_sequences_keep_apart_and_only_missing_pages_come_in(staged: int | None) -> None:
    cache, (keys, _) = filled(torch.float64)
    host = HostPages(cache, torch.zeros(4, PENDING_COLUMNS, dtype=torch.int32), 8, staged)
    for _ in range(20):  # the ring of page numbers begins anew
        host.move(transfer("out", 0, (1, 2, 3), (1, 2, 3)))
        host.move(transfer("out", 1, (4, 5), (4, 6)))
        host.move(transfer("out", 2, (6, 1), (5, 7)))
    host.move(transfer("in", 0, (7, 8), (2, 3)))
    host.move(transfer("in", 1, (9, 10), (4, 6)))

    assert torch.equal(cache.keys[:, 7:11], keys[:, [2, 3, 4, 5]])


def test_host_memory_is_whole_pages_at_least_of_one_longest_request() -> None:
    assert swap_places(0, 100, 10) == 0
    assert swap_places(1050, 100, 10, physical=2000) == 10
    with pytest.raises(CapacityError, match=r"swap_bytes is 3000, .* the machine has .*to at most 2000"):
        swap_places(3000, 100, 10, physical=2000)
    with pytest.raises(CapacityError, match=r"room for 9 pages of 100 bytes, .*has 10 pages: set it to 1000 or more"):
        swap_places(999, 100, 10, physical=2000)


def test_ranks_do_not_swap() -> None:
    with pytest.raises(SettingsError, match="'swap_bytes' is 5: it must be 0 where 'tensor_parallel' is above 1"):
        EngineConfig(swap_bytes=5, tensor_parallel=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pages_go_over_the_bus_beside_other_work(dtype: torch.dtype) -> None:
    card = torch.device("cuda")
    device = open_device(card)
    cache = PagedCache(SHAPE, 200, PAGE, card, dtype)
    for numbers in (cache.keys, cache.values):
        numbers.copy_(torch.randn(numbers.shape))
    keys, values = cache.keys.clone(), cache.values.clone()
    pending = torch.arange(12, dtype=torch.int32, device=card).reshape(4, -1)
    host = HostPages(cache, pending, 100, staged=7)
    torch.cuda.synchronize()
    moved = tuple(torch.randperm(198)[:90].add(1).tolist())
    targets = tuple(torch.randperm(198)[:90].add(1).tolist())
    places = tuple(range(5, 95))
    event = device.event()
    device.compute.run(lambda: None)
    device.swap.run(lambda: host.move(transfer("out", 2, moved, places)))
    device.swap.run(lambda: host.move(transfer("in", 0, targets, places)))
    device.swap.record(event)
    event.wait()

    assert torch.equal(cache.keys[:, list(targets)], keys[:, list(moved)])
    assert torch.equal(cache.values[:, list(targets)], values[:, list(moved)])
    assert pending[0].tolist() == [6, 7, 8]
    device.close()

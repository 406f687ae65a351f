import gc
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from photonlite.device.cuda import CudaDevice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]
CARD = torch.device("cuda", 0)


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    opened = CudaDevice(CARD)
    yield opened
    opened.close()


@pytest.fixture
def matrix() -> torch.Tensor:
    made = torch.eye(4096, device=CARD)
    torch.cuda.synchronize()
    return made


def keep_busy(matrix: torch.Tensor, products: int = 200) -> None:
    """Queue some tenths of a second of work."""
    out = torch.empty_like(matrix)
    for _ in range(products):
        torch.mm(matrix, matrix, out=out)


def test_a_copy_behind_an_event_sees_what_another_stream_computed(device: CudaDevice, matrix: torch.Tensor) -> None:
    value, host = torch.zeros(8, dtype=torch.int32, device=CARD), device.host_array((8,), np.int32)
    torch.cuda.synchronize()
    computed, copied = device.event(), device.event()

    def compute() -> None:
        keep_busy(matrix)
        value.fill_(7)

    device.compute.run(compute)
    device.compute.record(computed)
    device.download.wait(computed)
    device.download.run(lambda: _copy(value, host))
    device.download.record(copied)
    copied.wait()

    assert host.tolist() == [7] * 8


def test_streams_overlap_without_an_event(device: CudaDevice, matrix: torch.Tensor) -> None:
    value, host = torch.full((8,), 3, dtype=torch.int32, device=CARD), device.host_array((8,), np.int32)
    torch.cuda.synchronize()
    computed, copied = device.event(), device.event()

    device.compute.run(lambda: keep_busy(matrix))
    device.compute.record(computed)
    device.download.run(lambda: _copy(value, host))
    device.download.record(copied)
    copied.wait()

    assert not computed.done
    assert host.tolist() == [3] * 8
    computed.wait()
    assert computed.done


def test_recording_again_affects_later_waits_only(device: CudaDevice, matrix: torch.Tensor) -> None:
    event, early, late = device.event(), device.event(), device.event()

    device.compute.record(event)
    device.upload.wait(event)
    device.compute.run(lambda: keep_busy(matrix))
    device.compute.record(event)
    device.download.wait(event)
    device.upload.record(early)
    device.download.record(late)
    early.wait()

    assert not event.done
    assert not late.done
    late.wait()
    assert event.done


def test_an_event_that_has_not_passed_has_no_time(device: CudaDevice, matrix: torch.Tensor) -> None:
    event = device.event()
    device.compute.run(lambda: keep_busy(matrix))
    device.compute.record(event)

    with pytest.raises(RuntimeError):
        device.time_of(event)

    event.wait()


def test_times_lie_between_what_the_host_reads_before_and_after(device: CudaDevice, matrix: torch.Tensor) -> None:
    start, end = device.event(), device.event()

    before = time.perf_counter()
    device.compute.record(start)
    device.compute.run(lambda: keep_busy(matrix))
    device.compute.record(end)
    end.wait()
    after = time.perf_counter()

    slack = 1e-3
    assert before - slack <= device.time_of(start) < device.time_of(end) <= after + slack
    assert 0 < device.elapsed(start, end) <= after - before + slack
    assert device.elapsed(start, end) == pytest.approx(device.time_of(end) - device.time_of(start), abs=slack)


def test_rebasing_keeps_times_and_waits_for_no_work(device: CudaDevice, matrix: torch.Tensor) -> None:
    early, late = device.event(), device.event()
    device.compute.record(early)
    early.wait()
    before = device.time_of(early)
    device.compute.run(lambda: keep_busy(matrix))
    device.compute.record(late)

    device.rebase()

    assert not late.done
    assert device.time_of(early) == pytest.approx(before, abs=0.1)  # a busy host reads its clock late
    late.wait()


def test_work_runs_on_its_stream_and_restores_the_thread(device: CudaDevice) -> None:
    seen: list[tuple[torch.cuda.Stream, bool]] = []
    outside = torch.cuda.current_stream()

    def look() -> None:
        seen.append((torch.cuda.current_stream(), torch.is_inference_mode_enabled()))

    def nested() -> None:
        look()
        device.compute.run(look)
        device.upload.run(look)
        look()

    device.compute.run(nested)

    streams = [stream for stream, _ in seen]
    assert streams[0] == streams[1] == streams[3] != outside
    assert streams[2] not in (streams[0], outside)
    assert all(inference for _, inference in seen)
    assert torch.cuda.current_stream() == outside
    assert not torch.is_inference_mode_enabled()


def test_errors_of_work_propagate_and_restore_the_stream(device: CudaDevice) -> None:
    outside = torch.cuda.current_stream()

    with pytest.raises(ZeroDivisionError):
        device.compute.run(lambda: 1 // 0)

    assert torch.cuda.current_stream() == outside


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint8, np.int64])
def test_host_arrays_are_page_locked(device: CudaDevice, dtype: type) -> None:
    array = device.host_array((5, 3), dtype)

    assert torch.from_numpy(array).is_pinned()
    assert torch.from_numpy(array[1:]).is_pinned()


def test_the_memory_of_a_host_array_stays_as_long_as_a_view_of_it() -> None:
    device = CudaDevice(CARD)
    views = [device.host_array((64, 1024), np.int32)[1:] for _ in range(8)]
    for number, view in enumerate(views):
        view[:] = number

    device.close()
    del device
    gc.collect()
    # Would reuse the memory if it had been freed.
    others = [torch.full((64, 1024), -1, dtype=torch.int32, pin_memory=True) for _ in range(16)]

    assert [int(view.min()) for view in views] == [int(view.max()) for view in views] == list(range(8))
    assert all(torch.from_numpy(view).is_pinned() for view in views)
    assert len(others) == 16


def test_closing_waits_for_all_work(matrix: torch.Tensor) -> None:
    device = CudaDevice(CARD)
    event = device.event()
    device.upload.run(lambda: keep_busy(matrix))
    device.upload.record(event)

    device.close()

    assert event.done


def test_opening_waits_for_the_default_stream(matrix: torch.Tensor) -> None:
    keep_busy(matrix)
    queued = torch.cuda.Event()
    queued.record()

    device = CudaDevice(CARD)

    assert queued.query()
    device.close()


def _copy(source: torch.Tensor, target: np.ndarray) -> None:
    torch.from_numpy(target).copy_(source, non_blocking=True)

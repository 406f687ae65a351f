import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from photonlite.cache.store import store as module
from photonlite.cache.store.disk import DiskTier, entries
from photonlite.cache.store.store import DiskStore, ImageStore
from photonlite.images.crops import allocate_array
from photonlite.sequence import StoredImage

GUARD = 60.0
LIMIT = 10**6


def embeddings(seed: int = 0) -> StoredImage:
    return StoredImage(np.random.default_rng(seed).integers(0, 256, 96, np.uint8), (2, 3, 8), "bfloat16")


def opened(folder: Path, context: str = "model", memory: int = 1000) -> ImageStore:
    return ImageStore(memory, DiskStore(DiskTier(folder, LIMIT), context))


def test_memory_is_asked_first_and_does_not_need_the_disk(tmp_path: Path) -> None:
    store, kept = opened(tmp_path), embeddings()
    store.keep("image", "", kept)
    store.close()

    assert store.find("image") is store.load("image", "") is kept
    assert store.counters == {"store_loads": 0, "store_misses": 0}
    assert store.gauges == {"stored_images": 1, "stored_bytes": 96}


def test_another_process_finds_them_on_the_disk_and_keeps_them_in_memory(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.keep("image", "tenant", embeddings())
    first.close()

    store = opened(tmp_path)
    assert store.find("image") is None
    assert store.expects("image", "tenant")
    assert not store.expects("image", "other")
    found = store.load("image", "tenant")
    store.close()

    assert found is not None
    assert np.array_equal(found.data, embeddings().data)
    assert store.find("image") is found
    assert store.counters == {"store_loads": 1, "store_misses": 0}


def test_another_checkpoint_precision_or_rule_finds_nothing(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.keep("image", "", embeddings())
    first.close()

    store = opened(tmp_path, "another model")

    assert not store.expects("image", "")
    assert store.load("image", "") is None
    store.close()


def test_while_the_checkpoint_is_hashed_the_disk_has_nothing_and_writes_wait(tmp_path: Path) -> None:
    gate = threading.Event()
    first = opened(tmp_path)
    first.keep("before", "", embeddings(1))
    first.close()

    def context() -> str:
        assert gate.wait(GUARD)
        return "model"

    store = ImageStore(1000, DiskStore(DiskTier(tmp_path, LIMIT), context))
    store.keep("image", "", embeddings())
    assert not store.expects("before", "")
    gate.set()
    store.close()

    assert store.expects("before", "")
    assert store.expects("image", "")


def test_a_checkpoint_that_cannot_be_hashed_is_logged_and_nothing_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def context() -> str:
        raise OSError("the file is gone")

    with caplog.at_level(logging.WARNING, "photonlite"):
        store = ImageStore(1000, DiskStore(DiskTier(tmp_path, LIMIT), context))
        store.keep("image", "", embeddings())
        store.close()

    assert "the file is gone" in caplog.text
    assert (store.expects("image", ""), list(entries(tmp_path))) == (False, [])
    assert store.load("image", "") is not None  # memory works


def test_while_much_waits_to_be_written_more_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING_BYTES", 2 * 96)
    gate = threading.Event()
    disk = DiskStore(DiskTier(tmp_path, LIMIT), lambda: str(gate.wait(GUARD)))
    for number in range(5):
        disk.write(f"{number}", "", embeddings())
    gate.set()
    disk.close()

    assert disk.skipped == 3
    assert [disk.has(f"{number}", "") for number in range(5)] == [True, True, False, False, False]


def test_memory_that_is_short_while_reading_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full(shape: tuple[int, ...]) -> np.ndarray:
        raise MemoryError

    first = opened(tmp_path)
    first.keep("image", "", embeddings())
    first.close()
    store = opened(tmp_path)
    store.buffer = full
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert store.load("image", "") is None

    assert "stored embeddings are not read" in caplog.text
    store.buffer = allocate_array
    assert store.load("image", "") is not None
    store.close()


def test_a_damaged_file_is_counted_and_encoded_anew(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.keep("image", "", embeddings())
    first.close()
    next(entries(tmp_path)).path.write_bytes(b"nonsense")

    store = opened(tmp_path)
    assert store.expects("image", "")
    assert store.load("image", "") is None
    assert not store.expects("image", "")
    assert store.counters == {"store_loads": 0, "store_misses": 1}
    store.close()

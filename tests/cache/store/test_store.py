import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from photonlite.cache.store import store as module
from photonlite.cache.store.arena import HostArena
from photonlite.cache.store.budget import COPY_S, CopyBudget
from photonlite.cache.store.disk import DiskTier, NumberFormat, entries
from photonlite.cache.store.policy import Kind, TierPolicy
from photonlite.cache.store.store import DiskStore, ImageStore, Size
from photonlite.image_inputs import HostTensor, PrefixPages
from photonlite.images.crops import allocate_array
from tests.guard import GUARD

LIMIT = 10**6
MEMORY = 1000
SIZE = (40, 30)
PLACE = PrefixPages("prefix", 1, 4, 4, 16)
"""Of an image's pages in its prompt."""


def numbers(seed: int = 0, size: int = 96) -> HostTensor:
    return HostTensor(np.random.default_rng(seed).integers(0, 256, size, np.uint8), (size // 2,), "bfloat16")


def expected(size: Size | int) -> NumberFormat:
    """Return the format of `numbers` for an image of this size, and for three pages."""
    return NumberFormat((48 if size in (SIZE, 3) else 7,), "bfloat16")


def opened(
    folder: Path, context: str | Callable[[], str] = "model", memory: int = MEMORY, policy: TierPolicy | None = None
) -> ImageStore:
    policy = policy or TierPolicy(lambda: (None, None))
    return ImageStore(memory, policy, DiskStore(DiskTier(folder, LIMIT), context, policy, expected))


def kept(folder: Path, key: str = "image", salt: str = "", *, pages: bool = False) -> None:
    """Let another process keep an image."""
    store = opened(folder)
    store.keep(key, salt, "embeddings", numbers(), 9)
    if pages:
        store.keep(PLACE.key, salt, "pages", numbers(1), 730)
    store.close()


def test_memory_is_asked_first_and_does_not_need_the_disk(tmp_path: Path) -> None:
    store, tensor, pages = opened(tmp_path), numbers(), numbers(1)
    store.keep("image", "", "embeddings", tensor, 9)
    alone = store.load("image", "", SIZE, PLACE)
    store.keep(PLACE.key, "", "pages", pages, 730)
    store.close()

    found, bare = store.load("image", "", SIZE, PLACE), store.load("image", "", SIZE)
    assert found is not None
    assert found.pages is not None
    assert (found.embeddings, found.pages.place, found.pages.numbers) == (tensor, PLACE, pages)
    assert alone is not None
    assert bare is not None
    assert alone.pages is bare.pages is None
    assert store.counters == {"store_loads": 0, "store_misses": 0}
    assert store.gauges == {"stored_tensors": 2, "stored_bytes": 192}


@pytest.mark.parametrize("pages", [False, True])
def test_another_process_finds_it_on_the_disk_and_keeps_it_in_memory(tmp_path: Path, pages: bool) -> None:
    kept(tmp_path, salt="tenant", pages=pages)

    store = opened(tmp_path)
    assert store.expects("image", "tenant")
    assert not store.expects("image", "other")
    found = store.load("image", "tenant", SIZE, PLACE)
    store.close()

    assert found is not None
    assert np.array_equal(found.embeddings.data, numbers().data)
    assert (found.pages is not None) is pages
    if found.pages is not None:
        assert np.array_equal(found.pages.numbers.data, numbers(1).data)
    again = store.load("image", "tenant", SIZE, PLACE)
    assert again is not None
    assert again.embeddings is found.embeddings
    assert (again.pages is not None) is pages
    assert store.counters == {"store_loads": 1 + pages, "store_misses": 0}


def test_pages_without_embeddings_are_of_no_use(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.keep(PLACE.key, "", "pages", numbers(), 730)
    store.close()
    assert store.load("image", "", SIZE, PLACE) is None
    assert not store.expects("image", "")


def test_another_checkpoint_precision_or_rule_finds_nothing(tmp_path: Path) -> None:
    kept(tmp_path)
    store = opened(tmp_path, "another model")

    assert not store.expects("image", "")
    assert store.load("image", "", SIZE) is None
    store.close()


def test_while_the_checkpoint_is_hashed_the_disk_has_nothing_and_writes_wait(tmp_path: Path) -> None:
    gate = threading.Event()
    kept(tmp_path, "before")

    def context() -> str:
        assert gate.wait(GUARD)
        return "model"

    store = opened(tmp_path, context)
    store.keep("image", "", "embeddings", numbers(), 9)
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
        store = opened(tmp_path, context)
        store.keep("image", "", "embeddings", numbers(), 9)
        store.close()

    assert "the file is gone" in caplog.text
    assert list(entries(tmp_path)) == []
    assert store.load("image", "", SIZE) is not None  # memory works


def test_while_much_waits_to_be_written_more_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 2 * 96)
    gate = threading.Event()
    policy = TierPolicy(lambda: (None, None))
    disk = DiskStore(DiskTier(tmp_path, LIMIT), lambda: str(gate.wait(GUARD)), policy, expected)
    for number in range(5):
        disk.write(f"{number}", "", "embeddings", numbers())
    gate.set()
    disk.close()

    assert disk.skipped == 3
    assert [disk.has(f"{number}", "", "embeddings") for number in range(5)] == [True, True, False, False, False]


def test_what_is_made_while_the_program_ends_stays_in_memory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()  # as the thread pools of a program that ends, before its engines

    store.keep("image", "", "embeddings", numbers(), 9)

    assert store.load("image", "", SIZE) is not None
    assert list(entries(tmp_path)) == []


def test_memory_that_is_short_while_reading_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full(shape: tuple[int, ...]) -> Any:
        raise MemoryError

    kept(tmp_path)
    store = opened(tmp_path)
    store.buffer = full
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert store.load("image", "", SIZE) is None

    assert "is not read" in caplog.text
    store.buffer = allocate_array
    assert store.load("image", "", SIZE) is not None
    store.close()


def test_numbers_of_another_shape_than_the_image_has_are_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path)
    store = opened(tmp_path)
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert store.load("image", "", (3, 3)) is None
    store.close()

    assert "it has bfloat16 [48], not bfloat16 [7]" in caplog.text
    assert store.counters["store_misses"] == 1
    assert list(entries(tmp_path)) == []


@pytest.mark.parametrize("damaged", ["embeddings", "pages"])
def test_a_damaged_file_is_counted_and_computed_anew(tmp_path: Path, damaged: Kind) -> None:
    kept(tmp_path, pages=True)
    store = opened(tmp_path)
    assert store._disk is not None
    name = store._disk._full_key(PLACE.key if damaged == "pages" else "image", damaged)
    (path,) = [entry.path for entry in entries(tmp_path) if entry.path.stem == name]
    path.write_bytes(b"nonsense")

    found = store.load("image", "", SIZE, PLACE)
    store.close()

    assert (found is None) == (damaged == "embeddings")
    assert found is None or found.pages is None
    assert store.counters["store_misses"] == 1
    assert not path.exists()


def measured(costs: tuple[float | None, float | None], disk: float) -> TierPolicy:
    """Make a policy of measured rates; a crop stands for 10 bytes, a position for 1."""
    policy = TierPolicy(lambda: costs)
    policy.note_read("memory", 1, 1e-9)
    policy.note_read("disk", 1, disk)
    policy.note_units("embeddings", 1, 10)
    policy.note_units("pages", 1, 1)
    return policy


class Still(DiskStore):
    """Its rates are those that it was given."""

    def _measure(self) -> None: ...


def still(folder: Path, policy: TierPolicy) -> ImageStore:
    return ImageStore(MEMORY, policy, Still(DiskTier(folder, LIMIT), "model", policy, expected))


def test_what_a_disk_reads_more_slowly_than_the_device_computes_is_neither_written_nor_read(tmp_path: Path) -> None:
    kept(tmp_path, pages=True)
    slow = still(tmp_path, measured((1.0, 1e-5), disk=1e-3))
    found = slow.load("image", "", SIZE, PLACE)
    slow.keep("new", "", "pages", numbers(2), 96)
    slow.close()

    assert found is not None
    assert found.pages is None  # 0.1 s from the disk, 0.001 s computed
    assert len(list(entries(tmp_path))) == 2
    assert not still(tmp_path, measured((1e-9, 1e-9), disk=1e-3)).expects("image", "")


def test_pages_of_another_prefix_or_number_are_a_miss(tmp_path: Path) -> None:
    kept(tmp_path, pages=True)
    store = opened(tmp_path)
    other = store.load("image", "", SIZE, PLACE._replace(key="another prefix"))
    longer = store.load("image", "", SIZE, PLACE._replace(stop=5))
    store.close()

    assert other is not None
    assert longer is not None
    assert other.pages is longer.pages is None
    assert store.counters["store_misses"] == 1


def test_pages_are_wanted_where_they_pay_and_several_have_room(tmp_path: Path) -> None:
    alone = ImageStore(MEMORY, measured((1.0, 1e-5), disk=1e-3))
    assert alone.wants("image", "pages", 200, 200)
    assert not alone.wants("image", "pages", 300, 300)  # a quarter of the memory is 250
    assert not ImageStore(MEMORY, measured((1.0, 1e-9), disk=1e-3)).wants("image", "pages", 200, 200)
    assert still(tmp_path, measured((1.0, 1.0), disk=1e-3)).wants("image", "pages", 300, 300)


def test_embeddings_are_wanted_where_they_pay(tmp_path: Path) -> None:
    assert ImageStore(MEMORY, measured((1.0, 1e-5), disk=1e-3)).wants("image", "embeddings", 9, 900)
    assert not ImageStore(MEMORY, measured((1e-9, 1e-9), disk=1e-3)).wants("image", "embeddings", 9, 900)
    assert not still(tmp_path, measured((1e-9, 1e-9), disk=1e-3)).wants("image", "embeddings", 9, 900)


def test_a_budget_leaves_images_out_until_one_is_asked_about_again() -> None:
    # Computing the embeddings of an image takes five times as long as a copy.
    store = ImageStore(MEMORY, measured((COPY_S, COPY_S / 1000), disk=1e-3), budget=CopyBudget(MEMORY))

    def offered(image: str) -> list[bool]:
        return [store.wants(image, kind, units, size) for kind, units, size in (("embeddings", 5, 50), ("pages", 9, 9))]

    assert offered("first") == [False, False]
    assert offered("second") == [False, False]
    assert offered("first") == [True, True]
    store.keep("first", "", "embeddings", numbers(0, 50), 5)
    assert [offered(f"{number}")[0] for number in range(5)] == [True, True, False, False, False]
    assert store.load("first", "", SIZE) is not None
    assert [offered(f"more {number}")[0] for number in range(5)][::4] == [True, False]


def test_memory_is_taken_from_what_is_worth_least_once_the_arena_is_full() -> None:
    store = ImageStore(4096, TierPolicy(lambda: (None, None)), arena=HostArena(np.zeros(4096, np.uint8)))
    for number in range(9):
        data = store.allocate(1024)
        assert data is not None
        store.keep(f"{number}", "", "embeddings", HostTensor(data, (512,), "bfloat16"), 9)
        del data
    found = [store.load(f"{number}", "", SIZE) for number in range(9)]

    assert [one is not None for one in found] == [False] * 5 + [True] * 4
    assert store.allocate(1024) is None  # what is in use keeps its memory
    del found
    assert store.allocate(1024) is not None
    assert store.gauges["stored_bytes"] == 0
    assert store.allocate(2048) is None  # more than a quarter, which would push out too many


def test_what_is_read_from_a_disk_lies_in_the_arena(tmp_path: Path) -> None:
    kept(tmp_path)
    store, arena = opened(tmp_path), HostArena(np.zeros(MEMORY, np.uint8))
    store._arena = arena
    found = store.load("image", "", SIZE)
    store.close()

    assert found is not None
    assert np.array_equal(found.embeddings.data, numbers().data)
    assert arena.take(MEMORY) is None


def test_pages_go_before_embeddings_that_save_more_time_a_byte() -> None:
    store = ImageStore(MEMORY, measured((1.0, 1e-5), disk=1e-3))
    store.keep("first", "", "embeddings", numbers(0), 9)
    for number in range(12):
        store.keep(f"{number}", "", "pages", numbers(number, 200), 200)

    assert store.load("first", "", SIZE) is not None
    assert store.gauges["stored_bytes"] <= MEMORY


def test_the_disk_is_measured_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TierPolicy(lambda: (None, None))
    disk = DiskStore(DiskTier(tmp_path, LIMIT), "model", policy, expected)
    disk.measured.result(GUARD)
    assert policy.rates["disk"] > 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    disk.close()


def test_a_disk_that_was_slow_once_is_tried_again(tmp_path: Path) -> None:
    kept(tmp_path)
    store = still(tmp_path, measured((1e-4, 1e-9), disk=1.5e-5))

    assert not store.expects("image", "")
    asked = 1
    while not store.expects("image", ""):
        asked += 1
        assert asked < 100
    assert asked > 10
    store.close()

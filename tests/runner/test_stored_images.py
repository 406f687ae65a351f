import logging
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from photonlite.batch import BatchItem, CropGroup, EncodeJob
from photonlite.cache.store.arena import HostArena
from photonlite.image_inputs import CutImage, HostTensor, PrefixPages, StoredImage, StoredPages
from photonlite.runner import stored_images as module
from photonlite.runner.stored_images import ImageKeeper, StoredImages
from photonlite.runner.swap import lock_pages
from photonlite.sequence import Sequence
from tests.guard import GUARD

CPU = torch.device("cpu")
NO_BUFFERS: Any = None


class Leader:
    cache_salt = "tenant"


class Taker:
    """A store."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, str, HostTensor, int]] = {}

    def wants(self, image: str, kind: str, units: int, size: int) -> bool:
        return True

    def allocate(self, size: int) -> Any:
        return np.empty(size, np.uint8)

    def keep(self, key: str, cache_salt: str, kind: str, tensor: HostTensor, units: int) -> None:
        self.kept[key] = cache_salt, kind, tensor, units


class Locked(Taker):
    """A store with page-locked memory for images of 96 bytes and their sums."""

    def __init__(self, images: int = 1) -> None:
        super().__init__()
        memory = np.zeros(512 * (images - 1) + 96 + 8, np.uint8)
        lock_pages(torch.from_numpy(memory), memory)
        self.memory = HostArena(memory)

    def allocate(self, size: int) -> Any:
        return self.memory.take(size)


class Inner:
    """Encodes a job to its number; two levels, three positions."""

    input_shape = (4, 2, 2, 3)

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.uploads: list[list[int]] = []
        self.made: dict[int, Tensor] = {}

    def upload(self, buffers: Any, groups: Any) -> None:
        self.uploads.append([group.job.number for group in groups])

    def encode(self, buffers: Any, groups: Any, bank: Any = None) -> None:
        for group in groups:
            if group.first + group.count == group.job.total and not group.job.failed:
                shape = 2, 3, 8
                numbers = torch.arange(48, device=self.device).view(shape) + group.job.number
                self.made[group.job.number] = numbers.to(torch.bfloat16)

    def work(self, groups: Any) -> int:
        return len(groups)

    def embeddings(self, job: int) -> Tensor | None:
        return self.made.get(job)

    def forget(self, job: EncodeJob) -> None:
        self.made.pop(job.number, None)

    def encode_most(self, buffers: Any, images: int) -> list[Tensor]:
        return []


def job(number: int, crops: Any = None) -> EncodeJob:
    crops = crops or CutImage(np.zeros((2, 2, 2, 3), np.uint8), (1, 1))
    leader: Any = Leader()
    return EncodeJob(number, f"image {number}", crops, leader)


def whole(one: EncodeJob) -> CropGroup:
    return CropGroup(one, 0, one.total)


def test_what_was_kept_comes_back_bit_by_bit_beside_images_that_are_encoded() -> None:
    taker, inner, first = Taker(), Inner(), job(1)
    images = StoredImages(inner, CPU, ImageKeeper(CPU, taker))
    with torch.inference_mode():
        images.encode(NO_BUFFERS, [whole(first)])
        made = images.embeddings(1)
        assert made is not None
        salt, kind, stored, units = taker.kept["image 1"]
        pages = HostTensor(np.arange(16, dtype=np.uint8), (2, 1, 1, 1, 1, 4), "float16")
        again, other = job(2, StoredImage(stored)), job(3)
        again.pages = StoredPages(PrefixPages("prefix", 0, 1, 0, 1), pages)
        images.forget(first)
        images.upload(NO_BUFFERS, [whole(again), whole(other)])
        images.encode(NO_BUFFERS, [whole(again), whole(other)])

        assert (salt, kind, units) == ("tenant", "embeddings", 2)
        assert (stored.shape, stored.dtype, again.total) == ((2, 3, 8), "bfloat16", 1)
        restored = images.embeddings(2)
        assert restored is not None
        assert torch.equal(restored, made)
        assert inner.uploads == [[3]]
        assert images.work([whole(again), whole(other)]) == 1
        assert set(taker.kept) == {"image 1", "image 3"}  # what was restored is not kept again
        found = images.take_pages(2)
        assert found is not None
        assert (found.shape, found.dtype) == ((2, 1, 1, 1, 1, 4), torch.float16)
        assert images.take_pages(2) is images.take_pages(3) is None
        assert images.embeddings(2) is restored
        images.forget(again)
        assert images.embeddings(2) is None


class Prompt:
    """A sequence about one image at positions 1 to 5, whose pages have two positions."""

    cache_salt, filled = "tenant", 0
    images = (SimpleNamespace(key="image 1", pages=PrefixPages("prefix", first=0, stop=3, start=0, end=6)),)
    note_filled = Sequence.note_filled


@pytest.mark.parametrize("failed", [False, True])
def test_pages_are_kept_where_all_launches_of_their_positions_have_run(failed: bool) -> None:
    taker, one = Taker(), job(1)
    images, sequence = StoredImages(Inner(), CPU, ImageKeeper(CPU, taker)), Prompt()
    cache: Any = SimpleNamespace(page_bytes=4, take=lambda pages: pages.float())
    first, second = (BatchItem(sequence, start, 4, None, (one,)) for start in (0, 4))  # type: ignore[arg-type]
    with torch.inference_mode():
        images.encode(NO_BUFFERS, [whole(one)])
        for row in [second] if failed else [first, second]:
            images.keep_pages(cache, torch.arange(4)[None], [row])

    assert ("prefix" in taker.kept) == (not failed)


def test_only_whole_images_are_kept_and_later_work_does_not_change_them() -> None:
    taker, inner, one = Taker(), Inner(), job(1)
    images = StoredImages(inner, CPU, ImageKeeper(CPU, taker))
    with torch.inference_mode():
        images.encode(NO_BUFFERS, [CropGroup(one, 0, 1)])
        assert taker.kept == {}
        images.encode(NO_BUFFERS, [CropGroup(one, 1, 1)])
        kept = taker.kept["image 1"][2]
        before = kept.data.copy()
        inner.made[1].zero_()

    assert np.array_equal(kept.data, before)


def test_a_failed_image_is_neither_kept_nor_restored() -> None:
    taker = Taker()
    images = StoredImages(Inner(), CPU, ImageKeeper(CPU, taker))
    fresh, stored = job(1), job(2, StoredImage(HostTensor(np.zeros(4, np.uint8), (1, 1, 1), "float32")))
    images.upload(NO_BUFFERS, [whole(stored)])
    fresh.failed = stored.failed = True

    images.encode(NO_BUFFERS, [whole(fresh), whole(stored)])

    assert taker.kept == {}
    assert images.embeddings(1) is images.embeddings(2) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
def test_numbers_that_are_not_finite_are_not_kept(dtype: torch.dtype) -> None:
    taker = Taker()
    keeper, numbers = ImageKeeper(CPU, taker), torch.ones(2, 3)
    keeper.keep("image 1", "", "embeddings", numbers.to(dtype), 1)
    numbers[1, 2] = math.nan
    keeper.keep("image 2", "", "embeddings", numbers.to(dtype), 1)

    assert set(taker.kept) == {"image 1"}


def test_images_are_wanted_while_few_copies_wait_and_pages_if_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PENDING_BYTES", 100)
    monkeypatch.setattr(module, "_MOST_BYTES", 200)
    keeper = ImageKeeper(CPU, Taker())
    assert [keeper.wants("image", "pages", 9, size) for size in (200, 201)] == [True, False]
    assert keeper.wants("image", "embeddings", 9, 201)
    keeper._pending = 60

    for kind in ("embeddings", "pages"):
        assert [keeper.wants("image", kind, 9, size) for size in (40, 41)] == [True, False]


def test_what_the_store_does_not_want_is_not_kept() -> None:
    class Picky(Taker):
        def wants(self, image: str, kind: str, units: int, size: int) -> bool:
            return (image, kind, units, size) == ("image 2", "embeddings", 2, 96)

    taker = Picky()
    images = StoredImages(Inner(), CPU, ImageKeeper(CPU, taker))
    with torch.inference_mode():
        images.encode(NO_BUFFERS, [whole(job(1)), whole(job(2))])

    assert set(taker.kept) == {"image 2"}


def test_a_taker_that_raises_is_logged_and_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Full(Taker):
        def keep(self, *_: Any) -> None:
            raise MemoryError("no room")

    images = StoredImages(Inner(), CPU, ImageKeeper(CPU, Full()))
    with caplog.at_level(logging.WARNING, "photonlite"), torch.inference_mode():
        images.encode(NO_BUFFERS, [whole(job(1))])

    assert images.embeddings(1) is not None
    assert "what was computed for an image is not kept" in caplog.text


class Stream:
    """A stream or an event of a device that does at once what it is told."""

    def __init__(self, **_: Any) -> None: ...

    def record(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageKeeper]:
    """A keeper that copies as on a card."""
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    keeper = ImageKeeper(CPU, Taker())
    keeper._stream, keeper._thread = Stream(), ThreadPoolExecutor(1)
    yield keeper
    keeper.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("count", [3, 8])
def test_what_is_copied_is_handed_over_if_its_sum_is_finite(card: ImageKeeper, dtype: torch.dtype, count: int) -> None:
    numbers = torch.arange(float(count))
    card.keep("image 1", "tenant", "embeddings", numbers.to(dtype), 2)
    numbers[1] = math.nan
    card.keep("image 2", "", "embeddings", numbers.to(dtype), 1)
    card.close()

    taker: Any = card.store
    (found,) = taker.kept.items()
    salt, kind, stored, units = found[1]
    assert (found[0], salt, kind, units, stored.shape) == ("image 1", "tenant", "embeddings", 2, (count,))
    assert np.array_equal(stored.data, torch.arange(float(count)).to(dtype).view(torch.uint8).numpy())
    assert card._pending == 0


def test_without_memory_nothing_is_copied(card: ImageKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card.store, "allocate", lambda size: None)
    card.keep("image 1", "", "embeddings", torch.ones(3), 1)
    card.close()

    taker: Any = card.store
    assert taker.kept == {}
    assert card._pending == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are CUDA's")
def test_on_a_card_they_are_copied_beside_the_compute_stream() -> None:
    card, taker = torch.device("cuda"), Locked()
    keeper = ImageKeeper(card, taker)
    images = StoredImages(Inner(card), card, keeper)
    compute, upload = torch.cuda.Stream(), torch.cuda.Stream()
    first = job(1)
    with torch.inference_mode(), torch.cuda.stream(compute):
        torch.cuda._sleep(10_000_000)  # the device is behind: what is kept must wait for the encoding
        images.encode(NO_BUFFERS, [whole(first)])
        images.forget(first)
        torch.full((2, 3, 8), 7.0, dtype=torch.bfloat16, device=card)  # may take the memory, once it is free
    keeper.close()
    stored = taker.kept["image 1"][2]
    assert torch.from_numpy(stored.data).is_pinned()
    assert taker.memory.take(1) is None  # no other memory was taken
    again = job(2, StoredImage(stored))
    with torch.inference_mode():
        with torch.cuda.stream(upload):
            images.upload(NO_BUFFERS, [whole(again)])
        compute.wait_stream(upload)
        with torch.cuda.stream(compute):
            images.encode(NO_BUFFERS, [whole(again)])
            restored = images.embeddings(2)
        compute.synchronize()

    assert restored is not None
    wanted = (torch.arange(48).view(2, 3, 8) + 1).to(torch.bfloat16)
    assert torch.equal(restored.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are CUDA's")
def test_on_a_card_no_more_is_kept_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PENDING_BYTES", 100)  # two images have 96 bytes each
    card, taker = torch.device("cuda"), Locked(2)
    keeper, both = ImageKeeper(card, taker), threading.Event()
    assert keeper._thread is not None
    keeper._thread.submit(both.wait, 60)  # so that nothing is finished before both were offered
    images = StoredImages(Inner(card), card, keeper)
    with torch.inference_mode():
        images.encode(NO_BUFFERS, [whole(job(1)), whole(job(2))])
    both.set()
    keeper.close()

    assert set(taker.kept) == {"image 1"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are CUDA's")
def test_on_a_card_what_has_no_memory_or_is_not_finite_is_not_kept() -> None:
    card, taker = torch.device("cuda"), Locked()
    keeper, numbers = ImageKeeper(card, taker), torch.ones(3, 16, dtype=torch.bfloat16, device=card)
    keeper.keep("image 1", "", "embeddings", numbers / 0, 1)
    assert keeper._thread is not None
    keeper._thread.submit(lambda: None).result(GUARD)
    keeper.keep("image 2", "", "embeddings", numbers, 1)  # in the memory of the first one
    keeper.keep("image 3", "", "embeddings", numbers, 1)
    keeper.close()

    assert set(taker.kept) == {"image 2"}

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageError, ImageNotFoundError, ImageTooLargeError, ModelError
from photonlite.images import pool as module
from photonlite.images.crops import CropSpec, cut_crops
from photonlite.images.pool import ImagePool, picture_key

SPEC = CropSpec(crop_size=20, patch_size=4, overlap_margin=1, max_crops=6)
GUARD = 30.0


def picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


class Bell:
    """Counts how often it was rung, and can be waited for."""

    def __init__(self) -> None:
        self._rings = threading.Semaphore(0)
        self.count = 0

    def ring(self) -> None:
        self.count += 1
        self._rings.release()

    def wait(self) -> None:
        assert self._rings.acquire(timeout=GUARD)


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def pool(bell: Bell) -> Iterator[ImagePool]:
    pool = ImagePool(SPEC, ImageLimits(), 2, on_ready=bell.ring)
    yield pool
    pool.close()


def test_preparing_decodes_on_the_calling_thread_and_cuts_nothing(
    pool: ImagePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cut_crops", None)
    threads = []
    load = module.load_image
    monkeypatch.setattr(module, "load_image", lambda *a: threads.append(threading.current_thread()) or load(*a))

    prepared = pool.prepare(picture())

    assert threads == [threading.current_thread()]
    assert (prepared.size, prepared.crops, prepared.failure) == ((40, 30), None, None)
    assert prepared.preprocess_s > 0


def test_crops_are_cut_once_on_the_pool_and_announced(
    pool: ImagePool, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(module, "cut_crops", lambda *a: calls.append(threading.current_thread().name) or cut_crops(*a))
    prepared = pool.prepare(picture())
    before = prepared.preprocess_s

    threads = [threading.Thread(target=prepared.request_crops) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bell.wait()
    pool.settle()

    assert len(calls) == 1
    assert calls[0].startswith("photonlite-images")
    assert bell.count == 1
    assert prepared.crops is not None
    assert np.array_equal(prepared.crops.pixels, cut_crops(picture(), SPEC).pixels)
    assert prepared.crops.tiling == cut_crops(picture(), SPEC).tiling
    assert prepared.preprocess_s > before


def test_crops_lie_in_the_buffer_they_were_given(bell: Bell) -> None:
    given: list[Any] = []

    def buffer(shape: tuple[int, ...]) -> Any:
        given.append(np.zeros(shape, np.uint8))
        return given[0]

    pool = ImagePool(SPEC, ImageLimits(), 1, buffer=buffer, on_ready=bell.ring)
    prepared = pool.prepare(picture())
    prepared.request_crops()
    bell.wait()
    pool.close()

    assert prepared.crops is not None
    assert prepared.crops.pixels is given[0]
    assert np.array_equal(given[0], cut_crops(picture(), SPEC).pixels)


def test_a_picture_that_cannot_be_cut_says_so(pool: ImagePool, bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(module, "cut_crops", fail)
    prepared = pool.prepare(picture())
    prepared.request_crops()
    bell.wait()

    assert isinstance(prepared.failure, MemoryError)
    assert prepared.crops is None


def test_a_closed_pool_refuses_work_without_raising_at_the_engine(bell: Bell) -> None:
    pool = ImagePool(SPEC, ImageLimits(), 1, on_ready=bell.ring)
    prepared = pool.prepare(picture())
    pool.close()

    prepared.request_crops()
    bell.wait()

    assert isinstance(prepared.failure, ModelError)
    with pytest.raises(ModelError, match="closed: load it again"):
        pool.submit(lambda: None)


def test_crops_that_the_engine_waits_for_are_cut_before_pictures_that_wait_to_be_prepared(
    bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(module, "cut_crops", lambda *a: done.append("cut") or cut_crops(*a))
    pool = ImagePool(SPEC, ImageLimits(), 1, on_ready=bell.ring)
    prepared = pool.prepare(picture())
    go = threading.Event()
    pool.submit(lambda: go.wait(GUARD))
    for _ in range(3):
        pool.submit(lambda: done.append("prepared"))
    prepared.request_crops()
    go.set()
    bell.wait()
    pool.close()

    assert done == ["cut", "prepared", "prepared", "prepared"]


def test_settling_waits_for_all_work_and_closing_too(pool: ImagePool) -> None:
    gate, done = threading.Event(), []

    def work() -> None:
        assert gate.wait(GUARD)
        done.append(1)

    for _ in range(5):
        pool.submit(work)
    waiter = threading.Thread(target=lambda: (pool.settle(), done.append("settled")))
    waiter.start()
    gate.set()
    waiter.join(GUARD)

    assert done == [1, 1, 1, 1, 1, "settled"]


@pytest.mark.parametrize("source", [[picture(), picture()], (picture(),), []])
def test_several_pictures_are_refused_for_now(pool: ImagePool, source: Any) -> None:
    with pytest.raises(ImageError, match=r"a (list|tuple) of \d was handed in .* one picture for now: .*batch\(\)"):
        pool.prepare(source)


def test_what_cannot_be_read_is_a_typed_error(pool: ImagePool) -> None:
    with pytest.raises(ImageNotFoundError):
        pool.prepare("nowhere.png")
    with pytest.raises(ImageTooLargeError):
        ImagePool(SPEC, ImageLimits(max_pixels=100), 1).prepare(picture())


def test_a_key_is_the_same_for_the_same_pixels_however_they_came(pool: ImagePool, tmp_path: Any) -> None:
    picture().save(tmp_path / "a.png")

    keys = {pool.prepare(source).key for source in (picture(), np.asarray(picture()), str(tmp_path / "a.png"))}

    assert len(keys) == 1
    assert len(keys.pop()) == 64


def test_whatever_differs_gives_another_key(pool: ImagePool) -> None:
    black = Image.new("RGB", (4, 6))
    dot = black.copy()
    dot.putpixel((3, 5), (0, 0, 1))

    keys = [
        pool.prepare(black).key,
        pool.prepare(dot).key,
        pool.prepare(Image.new("RGB", (6, 4))).key,  # the same bytes
        pool.prepare(black, adapter="a").key,
        pool.prepare(black, salt="a").key,
        pool.prepare(black, salt="").key,
        pool.prepare(black, adapter="a", salt="a").key,
    ]

    assert len(set(keys)) == len(keys)


TEXTS = st.text(st.characters(), max_size=5)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_adapter_and_salt_never_run_into_each_other(a: str, b: str, c: str, d: str) -> None:
    image = Image.new("RGB", (1, 1))

    assert (picture_key(image, a, b) == picture_key(image, c, d)) == ((a, b) == (c, d))


def test_a_key_is_sha_256_over_parts_with_their_lengths() -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    parts = [b"2x1", b"RGB", bytes([1, 2, 3, 1, 2, 3]), b"lora", b"me"]

    data = b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    assert picture_key(image, "lora", "me") == hashlib.sha256(data).hexdigest()

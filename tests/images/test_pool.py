import gc
import hashlib
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageNotFoundError, ImageTimeoutError, ImageTooLargeError, ModelError
from photonlite.image_inputs import HostTensor, PrefixPages, StoredImage, UncutImage
from photonlite.images import crops
from photonlite.images import pool as module
from photonlite.images.crops import Allocator, CropSpec, ImageCrops, allocate_array, cut_crops
from photonlite.images.decode import rgb_bytes
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.pool import ImagePool, PreparedImage, image_key, share_tasks, stored_key
from tests.guard import GUARD
from tests.images.bombs import BOMBS

SPEC = CropSpec(crop_size=20, patch_size=4, overlap_margin=1, max_crops=6)


def make_image(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
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
    monkeypatch.setattr(crops, "cut_crops", None)
    threads = []
    load = module.load_image
    monkeypatch.setattr(module, "load_image", lambda *a: threads.append(threading.current_thread()) or load(*a))

    prepared = pool.prepare(make_image())

    assert threads == [threading.current_thread()]
    assert (prepared.size, prepared.crops, prepared.failure) == ((40, 30), None, None)
    assert prepared.preprocess_s > 0


def test_crops_are_cut_once_on_the_pool_and_announced(
    pool: ImagePool, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        crops, "cut_crops", lambda *a, **k: calls.append(threading.current_thread().name) or cut_crops(*a, **k)
    )
    prepared = pool.prepare(make_image())
    before = prepared.preprocess_s

    threads = [threading.Thread(target=prepared.request_crops) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bell.wait()
    pool.close()

    assert len(calls) == 1
    assert calls[0].startswith("photonlite-images")
    assert bell.count == 1
    assert isinstance(prepared.crops, ImageCrops)
    assert np.array_equal(prepared.crops.pixels, cut_crops(make_image(), SPEC).pixels)
    assert prepared.crops.tiling == cut_crops(make_image(), SPEC).tiling
    assert prepared.preprocess_s > before


def test_crops_lie_in_the_buffer_they_were_given(bell: Bell) -> None:
    given: list[Any] = []

    def buffer(shape: tuple[int, ...]) -> Any:
        given.append(np.zeros(shape, np.uint8))
        return given[0]

    pool = ImagePool(SPEC, ImageLimits(), 1, buffer=buffer, on_ready=bell.ring)
    prepared = pool.prepare(make_image())
    prepared.request_crops()
    bell.wait()
    pool.close()

    assert isinstance(prepared.crops, ImageCrops)
    assert prepared.crops.pixels is given[0]
    assert np.array_equal(given[0], cut_crops(make_image(), SPEC).pixels)


def test_a_failure_to_cut_is_recorded_on_the_image(
    pool: ImagePool, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(crops, "cut_crops", fail)
    prepared = pool.prepare(make_image())
    prepared.request_crops()
    bell.wait()

    assert isinstance(prepared.failure, MemoryError)
    assert prepared.crops is None


def test_a_closed_pool_refuses_work_without_raising_at_the_engine(bell: Bell) -> None:
    pool = ImagePool(SPEC, ImageLimits(), 1, on_ready=bell.ring)
    prepared = pool.prepare(make_image())
    pool.close()

    prepared.request_crops()
    bell.wait()

    assert isinstance(prepared.failure, ModelError)
    with pytest.raises(ModelError, match="closed: load it again"):
        pool.submit(lambda: None)


def test_crops_that_the_engine_waits_for_are_cut_before_images_that_wait_to_be_prepared(
    bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(crops, "cut_crops", lambda *a, **k: done.append("cut") or cut_crops(*a, **k))
    pool = ImagePool(SPEC, ImageLimits(), 1, on_ready=bell.ring)
    prepared = pool.prepare(make_image())
    go = threading.Event()
    pool.submit(lambda: go.wait(GUARD))
    for _ in range(3):
        pool.submit(lambda: done.append("prepared"))
    prepared.request_crops()
    go.set()
    bell.wait()
    pool.close()

    assert done == ["cut", "prepared", "prepared", "prepared"]


def test_closing_waits_for_all_jobs(pool: ImagePool) -> None:
    gate, done = threading.Event(), []

    def work() -> None:
        assert gate.wait(GUARD)
        done.append(1)

    for _ in range(5):
        pool.submit(work)
    waiter = threading.Thread(target=lambda: (pool.close(), done.append("closed")))
    waiter.start()
    gate.set()
    waiter.join(GUARD)

    assert done == [1, 1, 1, 1, 1, "closed"]


def test_unreadable_images_raise_typed_errors(pool: ImagePool) -> None:
    with pytest.raises(ImageNotFoundError):
        pool.prepare("nowhere.png")
    with pytest.raises(ImageTooLargeError):
        ImagePool(SPEC, ImageLimits(max_pixels=100), 1).prepare(make_image())


def test_a_key_is_the_same_for_the_same_pixels_however_they_came(pool: ImagePool, tmp_path: Any) -> None:
    make_image().save(tmp_path / "a.png")

    keys = {pool.prepare(source).key for source in (make_image(), np.asarray(make_image()), str(tmp_path / "a.png"))}

    assert len(keys) == 1
    assert len(keys.pop()) == 64


def test_any_difference_gives_another_key(pool: ImagePool) -> None:
    black = Image.new("RGB", (4, 6))
    dot = black.copy()
    dot.putpixel((3, 5), (0, 0, 1))

    keys = [
        pool.prepare(black).key,
        pool.prepare(dot).key,
        pool.prepare(Image.new("RGB", (6, 4))).key,  # the same bytes
        pool.prepare(black, cache_salt="a").key,
    ]

    assert len(set(keys)) == len(keys)


def packing(bell: Bell, buffer: Allocator = allocate_array) -> ImagePool:
    """Make a pool for a device that makes the crops itself."""
    return ImagePool(SPEC, ImageLimits(), 1, buffer=buffer, packs=True, on_ready=bell.ring)


def pixels_of(crops: Any) -> Any:
    assert isinstance(crops, UncutImage)
    width, height = crops.size
    return crops.packed[: 3 * width * height].reshape(height, width, 3)


def test_an_image_for_the_device_is_packed_when_it_is_prepared(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crops, "cut_crops", None)
    pool = packing(bell)

    prepared = pool.prepare(make_image())
    prepared.request_crops()
    pool.close()

    assert np.array_equal(pixels_of(prepared.crops), np.asarray(make_image()))
    assert bell.count == 0
    assert prepared.key == ImagePool(SPEC, ImageLimits(), 1).prepare(make_image()).key


def test_a_dropped_image_is_packed_again_when_asked_for(bell: Bell) -> None:
    pool = packing(bell)
    prepared = pool.prepare(make_image())
    prepared.drop_crops()
    assert prepared.crops is None

    prepared.request_crops()
    bell.wait()
    pool.close()

    assert np.array_equal(pixels_of(prepared.crops), np.asarray(make_image()))


def test_images_too_large_for_the_device_are_cut_on_the_host(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("photonlite.images.packing.MOST_BYTES", 3000)
    pool = packing(bell)
    small, large = pool.prepare(make_image(10, 10)), pool.prepare(make_image())
    assert isinstance(small.crops, UncutImage)
    assert large.crops is None

    large.request_crops()
    bell.wait()
    pool.close()

    assert isinstance(large.crops, ImageCrops)
    assert np.array_equal(large.crops.pixels, cut_crops(make_image(), SPEC).pixels)


def test_packing_ahead_is_bounded_and_released_images_make_room(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKED_AHEAD", 2 * 3 * 40 * 30)
    pool = packing(bell)
    first, second, third = (pool.prepare(make_image(seed=seed)) for seed in range(3))
    assert [one.crops is not None for one in (first, second, third)] == [True, True, False]

    third.request_crops()
    bell.wait()
    assert third.crops is not None
    first.drop_crops()
    del second
    gc.collect()

    assert [pool.prepare(make_image(seed=seed)).crops is not None for seed in range(3)] == [True, True, True]
    kept = [pool.prepare(make_image(seed=seed)) for seed in range(3)]
    assert [one.crops is not None for one in kept] == [True, True, False]
    pool.close()


def test_without_memory_an_image_waits_for_the_engine_to_ask(bell: Bell) -> None:
    def full(shape: tuple[int, ...]) -> Any:
        raise MemoryError("no room")

    pool = packing(bell, full)
    prepared = pool.prepare(make_image())
    assert (prepared.crops, prepared.failure) == (None, None)

    prepared.request_crops()
    bell.wait()
    pool.close()

    assert isinstance(prepared.failure, MemoryError)


def test_work_ends_at_a_checkpoint_that_raises(pool: ImagePool, monkeypatch: pytest.MonkeyPatch) -> None:
    class TooLateError(Exception):
        pass

    def late() -> None:
        raise TooLateError

    monkeypatch.setattr(module, "image_key", None)
    with pytest.raises(TooLateError):
        pool.prepare(make_image(), checkpoint=late)


def test_an_image_in_time_passes_both_checkpoints(pool: ImagePool) -> None:
    passed: list[int] = []
    pool.prepare(make_image(), checkpoint=lambda: passed.append(1))

    assert len(passed) == 2
    assert pool.image_size(make_image()) == (40, 30)


def test_isolated_files_are_decoded_in_workers_and_images_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, path = make_image(), tmp_path / "image.png"
    image.save(path)
    data = path.read_bytes()
    decoder = DecodePool(ImageLimits(decode_cpu_s=0.1, decode_cpu_s_per_megapixel=0.001), 1)
    pool = ImagePool(SPEC, ImageLimits(), 2, decoder=decoder)
    try:
        key = pool.prepare(image).key
        monkeypatch.setattr(module, "load_image", None)
        for source in (data, bytearray(data), str(path), path, io.BytesIO(data)):
            assert pool.prepare(source).key == key
            assert pool.image_size(source) is None  # the header is not read in this process
        assert pool.image_size(image) == (40, 30)
        with pytest.raises(ImageTimeoutError, match="CPU time"):
            pool.prepare(BOMBS["jpeg_exif_segments"]())
        with pytest.raises(ImageNotFoundError):
            pool.prepare(tmp_path / "missing.png")
    finally:
        pool.close()
    with pytest.raises(ModelError, match="closed"):
        decoder.decode(data)


TEXTS = st.text(st.characters(), max_size=5)


@given(TEXTS, TEXTS)
def test_each_cache_salt_has_its_own_keys(a: str, b: str) -> None:
    image, pixels = Image.new("RGB", (1, 1)), memoryview(bytes(3))

    assert (image_key(image, pixels, a) == image_key(image, pixels, b)) == (a == b)


def test_a_key_is_sha_256_over_parts_with_their_lengths() -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    pixels = hashlib.sha256(bytes([1, 2, 3, 1, 2, 3])).digest()
    parts = [b"2x1", b"RGB", pixels, b"me"]

    data = b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    assert image_key(image, rgb_bytes(image), "me") == hashlib.sha256(data).hexdigest()


def test_every_pixel_of_a_large_image_counts_and_threads_do_not() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 700, 3), np.uint8))  # three pieces
    with ThreadPoolExecutor(2) as threads:
        run_tasks = partial(share_tasks, threads, 2)
        keys = {image_key(image, rgb_bytes(image)), image_key(image, rgb_bytes(image), run_tasks=run_tasks)}
        assert len(keys) == 1

        for place in (0, 630_000, 1_259_999):
            pixels = bytearray(image.tobytes())
            pixels[place] ^= 1
            keys.add(image_key(image, memoryview(pixels), run_tasks=run_tasks))
    assert len(keys) == 4


def test_a_part_of_an_image_is_cut_as_an_image_of_its_pixels_when_it_is_requested() -> None:
    source = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    with closing(ImagePool(SPEC, ImageLimits(), 1)) as pool:
        whole = pool.prepare(source, cache_salt="tenant")
        part = whole.part((10, 5, 40, 35))
        assert (part.size, part.crops, part.preprocess_s, part.cache_salt) == ((30, 30), None, 0.0, "tenant")
        assert len({whole.key, part.key, whole.part((10, 5, 40, 36)).key}) == 3
        assert part.key == pool.prepare(source, cache_salt="tenant").part((10, 5, 40, 35)).key
        part.request_crops()
        pool.submit(lambda: None).result()

        wanted = pool.cut(source.crop((10, 5, 40, 35)))
        assert part.preprocess_s > 0
        assert isinstance(part.crops, ImageCrops)
        assert isinstance(wanted, ImageCrops)
        assert np.array_equal(part.crops.pixels, wanted.pixels)


class Kept:
    """What was computed for images, by key; `found` says which of it is still there when it is loaded."""

    def __init__(self) -> None:
        self.found: dict[str, StoredImage] = {}
        self.gone: set[str] = set()
        self.threads: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.pages: list[PrefixPages | None] = []

    def expects(self, key: str, cache_salt: str) -> bool:
        return key in self.found

    def load(self, key: str, cache_salt: str, size: tuple[int, int], pages: PrefixPages | None) -> StoredImage | None:
        self.sizes.append(size)
        self.pages.append(pages)
        self.threads.append(threading.current_thread().name)
        return None if key in self.gone else self.found.get(key)


def make_stored() -> StoredImage:
    return StoredImage(HostTensor(np.zeros(4, np.uint8), (1, 1, 1), "float32"))


@pytest.mark.parametrize("packs", [False, True])
def test_what_is_stored_takes_the_place_of_crops_when_the_engine_asks(bell: Bell, packs: bool) -> None:
    kept, box = Kept(), (0, 0, 20, 20)
    pool = ImagePool(SPEC, ImageLimits(), 1, packs=packs, on_ready=bell.ring, stored=kept)
    whole = pool.prepare(make_image())
    kept.found = {whole.key: make_stored(), whole.part(box).key: make_stored()}

    again = pool.prepare(make_image())
    tile = again.part(box)
    assert again.crops is None  # nothing is packed, and nothing is held before it is needed
    assert kept.threads == []
    place = PrefixPages("prefix", 0, 2, 0, 8)
    for image, pages in ((again, place), (tile, None)):
        image.request_crops(pages)
        bell.wait()
    pool.close()

    assert again.crops is kept.found[again.key]
    assert tile.crops is kept.found[tile.key]
    assert [name.startswith("photonlite-images") for name in kept.threads] == [True, True]
    assert kept.sizes == [again.size, (20, 20)]
    assert kept.pages == [place, None]


@pytest.mark.parametrize("packs", [False, True])
def test_what_is_gone_or_damaged_when_it_is_needed_is_cut(bell: Bell, packs: bool) -> None:
    kept = Kept()
    pool = ImagePool(SPEC, ImageLimits(), 1, packs=packs, on_ready=bell.ring, stored=kept)
    key = pool.prepare(make_image()).key
    kept.found[key] = make_stored()
    image = pool.prepare(make_image())
    kept.gone.add(key)

    image.request_crops()
    bell.wait()
    pool.close()

    assert isinstance(image.crops, UncutImage if packs else ImageCrops)
    assert image.failure is None


def test_an_adapter_takes_what_is_stored_of_its_own_encoding_alone(bell: Bell) -> None:
    kept = Kept()
    pool = ImagePool(SPEC, ImageLimits(), 1, on_ready=bell.ring, stored=kept)
    plain = pool.prepare(make_image())
    theirs = kept.found = {key: make_stored() for key in (plain.key, stored_key(plain.key, "shelf"))}

    def found(image: PreparedImage) -> object:
        image.request_crops()
        bell.wait()
        return image.crops

    shelf, other = pool.prepare(make_image(), adapter_key="shelf"), plain.for_adapter("other")
    assert shelf.key == other.key == plain.key
    assert found(shelf) is found(plain.for_adapter("shelf")) is theirs[stored_key(plain.key, "shelf")]
    assert found(pool.prepare(make_image())) is theirs[plain.key]
    assert isinstance(found(other), ImageCrops)
    assert isinstance(found(other.part((0, 0, 20, 20))), ImageCrops)
    pool.close()

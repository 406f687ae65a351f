import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photonlite.images.pool import image_key
from photonlite.images.resize import ParallelTasks

TEXTS = st.text(st.characters(), max_size=5)


@given(TEXTS, TEXTS)
def test_each_cache_salt_has_its_own_keys(a: str, b: str) -> None:
    image, pixels = Image.new("RGB", (1, 1)), bytes(3)

    assert (image_key(image, pixels, a) == image_key(image, pixels, b)) == (a == b)


def test_a_key_is_sha_256_over_parts_with_their_lengths() -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    pixels = hashlib.sha256(bytes([1, 2, 3, 1, 2, 3])).digest()
    parts = [b"2x1", b"RGB", pixels, b"me"]

    data = b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    assert image_key(image, image.tobytes(), "me") == hashlib.sha256(data).hexdigest()


def test_every_pixel_of_a_large_image_counts_and_threads_do_not() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 700, 3), np.uint8))  # three pieces
    with ThreadPoolExecutor(2) as threads:
        parallel = ParallelTasks(threads, 2)
        keys = {image_key(image, image.tobytes()), image_key(image, image.tobytes(), parallel=parallel)}
        assert len(keys) == 1

        for place in (0, 630_000, 1_259_999):
            pixels = bytearray(image.tobytes())
            pixels[place] ^= 1
            keys.add(image_key(image, bytes(pixels), parallel=parallel))
    assert len(keys) == 4

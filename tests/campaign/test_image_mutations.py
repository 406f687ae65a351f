import random
import struct
import zlib

import pytest

from bench.campaign.image_mutations import FORMATS, _with_right_sums, mutate, originals
from photonlite.config import ImageLimits
from photonlite.errors import ImageError
from photonlite.images.decode import load_image
from photonlite.server.routes.docs import MEDIA_TYPES as DOCUMENTED


def draw(count, seed=0):
    return [mutate(number, random.Random(f"{seed} {number}")) for number in range(count)]


def test_a_number_and_a_seed_are_one_image():
    assert draw(40) == draw(40)
    assert draw(40) != draw(40, seed=1)


def test_formats_take_turns_and_are_all_that_are_read():
    drawn = draw(160)
    assert [image.format for image in drawn[: len(FORMATS)]] == list(FORMATS)
    names = {"x-portable-pixmap": "ppm"}
    documented = [media_type.removeprefix("image/") for media_type in DOCUMENTED if media_type.startswith("image/")]
    assert {names.get(name, name) for name in documented} == set(FORMATS)
    assert sum(image.data not in originals(image.format) for image in drawn) > 150


@pytest.mark.parametrize("name", FORMATS)
def test_originals_are_read(name):
    for data in originals(name):
        assert load_image(data).size == (96, 72)


def test_some_damaged_images_are_read_and_others_refused():
    outcomes = set()
    for image in draw(80):
        try:
            outcomes.add(load_image(image.data, ImageLimits(max_pixels=1_000_000)).mode)
        except ImageError as error:
            outcomes.add(type(error).__name__)
    assert {"RGB", "ImageDecodeError"} <= outcomes


def test_checksums_of_a_damaged_png_are_mended():
    data = bytearray(originals("png")[0])
    data[20] ^= 1
    mended = _with_right_sums(data)
    assert struct.unpack_from(">I", mended, 29) == (zlib.crc32(mended[12:29]),)

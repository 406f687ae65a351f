import base64
import contextlib
import random
import struct

import pytest

from photonlite.server.errors import HttpError
from photonlite.server.pictures import decoded_bytes, from_data_uri, header_bytes, is_remote
from tests.server.asgi import post
from tests.server.parts import DATA_URI, PNG, encoded, server
from tests.serving import run

JPEG = encoded((70, 50), "JPEG")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_the_memory_of_a_picture_is_told_from_its_header(kind: str) -> None:
    data = encoded((80, 60), kind)
    assert decoded_bytes(data) == 3 * 80 * 60


def test_a_picture_need_not_be_whole_to_tell_its_size_and_a_broken_one_is_the_decoders_matter() -> None:
    assert decoded_bytes(encoded((3000, 2000))[:60]) == 3 * 3000 * 2000
    for data in (b"", b"no picture", PNG[:12], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        assert decoded_bytes(data) == 0


def test_a_data_uri_is_read_whatever_type_it_declares() -> None:
    code = base64.b64encode(PNG).decode()
    for head in ("data:image/jpeg;base64,", "DATA:;BASE64,", "data:text/plain;charset=utf-8;base64,"):
        assert from_data_uri(head + code) == PNG
    assert from_data_uri(DATA_URI[:40] + "\r\n" + DATA_URI[40:]) == PNG


@pytest.mark.parametrize("value", ["", "a.png", "data:", "data:image/png;base64", f"data:{'x' * 300};base64,"])
def test_what_is_no_data_uri_is_refused(value: str) -> None:
    with pytest.raises(HttpError) as error:
        from_data_uri(value)
    assert (error.value.status, error.value.code) == (400, "invalid_image_url")


@pytest.mark.parametrize("code", ["*", "ab", "=abc", "abc=d", "äöü"])
def test_damaged_base64_is_refused(code: str) -> None:
    with pytest.raises(HttpError) as error:
        from_data_uri("data:image/png;base64," + code)
    assert error.value.status == 400


def test_what_must_be_fetched_is_told_from_what_holds_its_picture() -> None:
    assert is_remote("https://a.example/b")
    assert is_remote("HTTP://a.example/b")
    assert not is_remote(DATA_URI)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_plain_pictures_tell_their_memory_without_a_decoder(kind: str) -> None:
    assert header_bytes(encoded((80, 60), kind)) == 3 * 80 * 60


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_other_pictures_are_left_to_a_decoder(kind: str) -> None:
    assert header_bytes(encoded((80, 60), kind)) is None


def test_a_second_header_that_would_overrule_the_first_is_left_to_a_decoder() -> None:
    larger = encoded((4000, 3000))
    assert header_bytes(PNG[:33] + larger[8:33] + PNG[33:]) is None
    start = JPEG.index(b"\xff\xc0")
    assert header_bytes(JPEG[:start] + JPEG[start : start + 19] + JPEG[start:]) is None


def test_a_header_without_end_is_left_to_a_decoder() -> None:
    assert header_bytes(PNG[:33] + b"\0\0\0\0teXt\0\0\0\0" * 1000 + PNG[33:]) is None
    assert header_bytes(JPEG[:2] + b"\xff\xfe\0\2" * 1000 + JPEG[2:]) is None


def test_a_picture_over_any_usual_size_is_left_to_a_decoder() -> None:
    sizes = ((8192, 8192, 3 * 8192 * 8192), (8193, 8192, None), (0, 6, None))
    for width, height, told in sizes:
        assert header_bytes(PNG[:16] + struct.pack(">II", width, height) + PNG[24:]) == told


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_the_memory_of_a_picture_counts_whoever_tells_it(kind: str) -> None:
    data = encoded((800, 600), kind)
    fine = len(data) * 2 + 3 * 800 * 600
    for limit, status in ((fine, 200), (3 * 800 * 600 - 1, 413)):
        answer = run(post(server(max_open_bytes=limit), "/v1/caption", data, {"content-type": "image/x"}))
        assert answer.status == status


@pytest.mark.parametrize("whole", [PNG, JPEG])
def test_a_damaged_header_never_tells_of_less_memory_than_a_decoder_will_take(whole: bytes) -> None:
    chance = random.Random(7)
    told = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(min(len(data), 700))] = chance.randrange(256)
        quick = header_bytes(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        if quick is not None:
            told += 1
            assert decoded_bytes(bytes(data)) in (quick, 0)
    assert told > 100


def test_base64_is_read_as_the_standard_library_reads_it_or_refused() -> None:
    chance = random.Random(3)
    read = 0
    for _ in range(2000):
        code = base64.b64encode(chance.randbytes(chance.randrange(40))).decode()
        assert from_data_uri("data:image/png;base64," + code) == base64.b64decode(code)
        place = chance.randrange(len(code) + 1)
        code = code[:place] + chance.choice("=-_*.é\0A") + code[place + chance.randrange(2) :]
        with contextlib.suppress(HttpError):
            data = from_data_uri("data:image/png;base64," + code)
            read += 1
            assert data == base64.b64decode(code, validate=True)
    assert read > 50

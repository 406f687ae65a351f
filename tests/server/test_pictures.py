import base64

import pytest

from photonlite.server.errors import HttpError
from photonlite.server.pictures import decoded_bytes, from_data_uri, is_remote
from tests.server.parts import DATA_URI, PNG, encoded


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

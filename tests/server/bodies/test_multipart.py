from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from photonlite.server.bodies.multipart import read_form
from photonlite.server.errors import HttpError

LONG = "b" * 71
MARK = f"--{LONG}".encode()
KIND = "multipart/form-data; boundary=b"


def part(content: bytes, disposition: str) -> bytes:
    return f"--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


@given(file=st.binary(max_size=200), text=st.text(max_size=50))
def test_files_and_fields_are_read_unchanged(file: bytes, text: str) -> None:
    assume(b"\r\n--b" not in file + text.encode())
    body = part(file, 'name="image"; filename="a.png"') + part(text.encode(), 'name="question"') + b"--b--\r\n"
    assert read_form(KIND, body) == ([file], {"question": [text]})


def test_preamble_epilogue_and_quotes_are_understood() -> None:
    body = (
        b"preamble\r\n--b b\r\n"
        b"Content-Type: image/png\r\ncontent-disposition: FORM-DATA; filename=a; name=image\r\n\r\n"
        b"\r\n--b\r\n\r\n--b b--\r\nepilogue"
    )
    assert read_form('multipart/form-data; charset=utf-8; boundary="b b"', body) == ([b"\r\n--b\r\n"], {})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", part(b"", 'name="a"') + b"--b--"),
        ('multipart/form-data; boundary=""', part(b"", 'name="a"').replace(b"--b", b"--") + b"----"),
        (f"multipart/form-data; boundary={LONG}", part(b"", 'name="a"').replace(b"--b", MARK) + MARK + b"--"),
        (KIND, b""),
        (KIND, part(b"x", 'name="a"')),
        (KIND, part(b"x", 'name="a"') + b"--c--"),
        (KIND, b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
        (KIND, b'--b\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--b--'),
        (KIND, b"--b\r\n\r\n--b--"),
        (KIND, b'--bx\r\nContent-Disposition: form-data; name="a"\r\n\r\nv\r\n--b--'),
        (KIND, b"--b\r\nA: " + b"a" * 9000 + b'\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--'),
        (KIND, part(b"\xff", 'name="a"') + b"--b--"),
        (KIND, part(b"x", 'name="a"') * 2 + b"--b--"),
        (KIND, b"".join(part(b"x", f'name="a{number}"') for number in range(129)) + b"--b--"),
    ],
)
def test_invalid_forms_are_refused(kind: str, body: bytes) -> None:
    with pytest.raises(HttpError) as error:
        read_form(kind, body)
    assert (error.value.status, error.value.code) == (400, "invalid_form")


@given(st.binary(max_size=300), st.text(max_size=40))
def test_any_bytes_are_read_or_refused(content: bytes, boundary: str) -> None:
    part_of_it = b"--b\r\nContent-Disposition: " + content + b"\r\n\r\n\r\n--b--"
    for body in (content, b"--b\r\n" + content + b"\r\n\r\nx\r\n--b--", part_of_it):
        for kind in (KIND, f"multipart/form-data; boundary={boundary}"):
            with suppress(HttpError):
                read_form(kind, body)


def test_a_field_that_may_be_repeated_has_all_its_texts() -> None:
    body = part(b"mug", 'name="object"') + part(b"3", 'name="n"') + part(b"key", 'name="object"') + b"--b--"

    assert read_form(KIND, body, repeated=("object",)) == ([], {"object": ["mug", "key"], "n": ["3"]})

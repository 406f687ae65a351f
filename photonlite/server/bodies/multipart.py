"""Takes a multipart form apart whose body is in memory already: images and fields."""

import re
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Final, NoReturn

from photonlite.server.errors import HttpError

_MOST_PARTS: Final = 32
_LONGEST_HEAD: Final = 8192
# What RFC 2046 allows in a boundary.
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")


def read_form(content_type: str, body: bytes) -> tuple[list[bytes], dict[str, str]]:
    """Take a form apart.

    Args:
        content_type: The header of the request, with the boundary.
        body: The whole body.

    Returns:
        The files in it, whatever their fields are called, and the other fields by name.

    Raises:
        HttpError: 400, it is no form, is cut off, has too many parts, or a field twice.
    """
    delimiter = b"\r\n--" + _boundary(content_type)
    # The first delimiter may stand at the very start, without the line break before it.
    parts = (b"\r\n" + body).split(delimiter, _MOST_PARTS + 2)
    if len(parts) > _MOST_PARTS + 2:
        _malformed(f"it has more than {_MOST_PARTS} parts")
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        _malformed("it is cut off, or has another boundary than Content-Type says")
    files: list[bytes] = []
    fields: dict[str, str] = {}
    for part in parts[1:-1]:
        name, is_file, content = _read_part(part)
        if is_file:
            files.append(content)
        elif name in fields:
            _malformed(f"it has the field {name[:40]!r} twice")
        else:
            fields[name] = _text(name, content)
    return files, fields


def _boundary(content_type: str) -> bytes:
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_param("boundary")
    if not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
        _malformed("Content-Type names no usable boundary")
    return boundary.encode()


def _read_part(part: bytes) -> tuple[str, bool, bytes]:
    head, end, content = part.partition(b"\r\n\r\n")
    # White space may follow the delimiter on its line.
    padding, _, head = head.partition(b"\r\n")
    if not end or padding.strip() or len(head) > _LONGEST_HEAD:
        _malformed("a part of it has no headers that can be read")
    headers = BytesHeaderParser().parsebytes(head)
    name = headers.get_param("name", header="content-disposition")
    if headers.get_content_disposition() != "form-data" or not isinstance(name, str):
        _malformed("a part of it has no Content-Disposition with a name")
    return name, headers.get_param("filename", header="content-disposition") is not None, content


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        _malformed(f"the field {name[:40]!r} is not UTF-8; an image needs a filename")


def _malformed(reason: str) -> NoReturn:
    raise HttpError(400, f"the multipart body cannot be read: {reason}", code="invalid_form")

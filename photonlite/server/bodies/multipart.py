"""Parses a multipart form whose body is in memory: images and fields."""

import re
from collections.abc import Collection
from typing import Any, Final, NoReturn

from python_multipart.multipart import MultipartParser, parse_options_header

from photonlite.server.errors import HttpError

_MOST_PARTS: Final = 128
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{1,70}")  # what RFC 2046 allows in a boundary


def read_form(
    content_type: str, body: bytes, repeated: Collection[str] = ()
) -> tuple[list[bytes], dict[str, list[str]]]:
    """Return a form's files, whatever their fields are called, and the texts of each other field.

    Raises 400 for a damaged form, and for a field that is there twice and not one of those that may be `repeated`.
    """
    form = _Form(repeated)
    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not _BOUNDARY.fullmatch(boundary):
            _refuse("Content-Type names no usable boundary")
        callbacks: Any = {name: getattr(form, name) for name in dir(form) if name.startswith("on_")}
        MultipartParser(boundary, callbacks).write(_checked(body, b"\r\n--" + boundary))
    except ValueError as cause:  # the parser's own errors among them
        _refuse(str(cause)[:100], cause)
    if not form.complete:
        _refuse("it is cut off, or has another boundary than Content-Type says")
    return form.files, form.fields


class _Form:
    """Collects the parts of a form; the parser calls its methods."""

    def __init__(self, repeated: Collection[str]) -> None:
        self.files: list[bytes] = []
        self.fields: dict[str, list[str]] = {}
        self._repeated = repeated
        self.complete = False
        self._headers: dict[bytes, bytes] = {}
        self._name = self._data = b""

    def on_part_begin(self) -> None:
        self._headers, self._data = {}, b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name = data[start:end].lower()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers[self._name] = data[start:end]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data = data[start:end]  # all of it, because the whole body was written at once

    def on_part_end(self) -> None:
        header = self._headers.get(b"content-disposition", b"")
        kind, options = parse_options_header(header)
        if kind != b"form-data" or b"name" not in options:
            _refuse("a part of it has no Content-Disposition with a name")
        name = options[b"name"].decode(errors="replace")
        if b"filename" in options or b"filename*=" in header:
            self.files.append(self._data)
        elif name in self.fields and name not in self._repeated:
            _refuse(f"it has the field {name[:40]!r} twice")
        else:
            try:
                self.fields.setdefault(name, []).append(self._data.decode("utf-8-sig"))
            except UnicodeDecodeError:
                _refuse(f"the field {name[:40]!r} is not UTF-8; an image needs a filename")

    def on_end(self) -> None:
        self.complete = True


def _checked(body: bytes, delimiter: bytes) -> bytes:
    """Cut a body to its first delimiter; refuse near-delimiters, whose slow scan would hold up all requests."""
    whole = body.startswith(delimiter[2:])  # the first one needs no line break before it
    count = body.count(delimiter)
    if count + whole > _MOST_PARTS + 1:
        _refuse(f"it has more than {_MOST_PARTS} parts")
    if body.count(delimiter + b"\r\n") + body.count(delimiter + b"--") < count:
        _refuse("a delimiter in it is followed by something else than a line break")
    return body if whole else body[body.find(delimiter) + 2 :] if count else b""


def _refuse(reason: str, cause: Exception | None = None) -> NoReturn:
    raise HttpError(400, f"the multipart body cannot be read: {reason}", code="invalid_form") from cause

"""Recognises plain requests that have arrived whole, so that those without a place are refused before they are parsed.

Under overload most requests are refused, and parsing, routing and writing each took more time from the engine than the
answers are worth. What is unusual in any way is left to the parser: other headers (a browser's Origin among them),
a name twice, a body in chunks, a second request behind the first.
"""

import re
from typing import Any, Final

_HEAD: Final = re.compile(
    rb"POST (/v1/(?:caption|query|detect|point|segment|chat/completions)) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z-]{1,40}: ?[\x21-\x7e][\x20-\x7e]*\r\n){1,16})\r\n"
)
_USUAL: Final = frozenset((
    b"accept", b"accept-encoding", b"authorization", b"connection", b"content-length", b"content-type", b"host",
    b"user-agent", b"x-moondream-auth", b"x-request-id",
))  # fmt: skip
_DIGITS: Final = 10  # of a length at most


def whole_request(data: bytes) -> dict[str, Any] | None:
    """Return the ASGI scope of what is one plain request, headers and body, and nothing else; None otherwise."""
    found = _HEAD.match(data)
    if found is None:
        return None
    lines = (line.partition(b":") for line in found[2].split(b"\r\n")[:-1])
    headers = [(name.lower(), value.strip()) for name, _, value in lines]
    given = dict(headers)
    length = given.get(b"content-length", b"")
    if len(given) < len(headers) or not given.keys() <= _USUAL or not (length.isdigit() and len(length) <= _DIGITS):
        return None
    if len(data) != found.end() + int(length) or given.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    return {"type": "http", "method": "POST", "path": found[1].decode(), "query_string": b"", "headers": headers}

"""Requests that were valid once: bodies changed as JSON and as bytes, and heads that no client should write.

Some ask for much: many names in many tiles, images of odd or claimed sizes, deep and long JSON, bodies in many chunks.
"""

import base64
import copy
import io
import json
import random
import struct
import zlib
from functools import cache
from typing import Any, Final, NamedTuple

from PIL import Image

from bench.campaign.client import JSON


def _png(size: tuple[int, int] = (8, 6)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "navy").save(file, "PNG")
    return file.getvalue()


@cache
def _uri(size: tuple[int, int] = (8, 6), claimed: tuple[int, int] | None = None) -> str:
    """Return a PNG of a size as a data URI; its header may claim another size, with the right checksum."""
    data = bytearray(_png(size))
    if claimed is not None:
        struct.pack_into(">II", data, 16, *claimed)
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
    return "data:image/png;base64," + base64.b64encode(data).decode()


PNG_URI: Final = _uri()
_MESSAGES: Final = [
    {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": PNG_URI}}]}
]
_SETTINGS: Final = {"max_tokens": 4, "temperature": 0.5, "top_p": 0.9}
TEMPLATES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/query", {"question": "How many?", "settings": _SETTINGS}),
    ("/v1/query", {"question": "How many?", "image_url": PNG_URI, "stream": True, "settings": _SETTINGS}),
    ("/v1/query", {"question": "?", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}),
    ("/v1/query", {"question": "?", "choices": ["yes", "no"]}),
    ("/v1/query", {"question": "?", "regex": "[A-Z]{2}-[0-9]+", "settings": _SETTINGS}),
    ("/v1/caption", {"image_url": PNG_URI, "length": "short", "settings": _SETTINGS}),
    ("/v1/detect", {"image_url": PNG_URI, "object": "mug", "settings": {"max_objects": 2}, "tile": [1, 1]}),
    ("/v1/point", {"image_url": PNG_URI, "object": ["mug", "key"], "settings": {"max_objects": 2}}),
    ("/v1/segment", {"image_url": PNG_URI, "object": "mug", "spatial_refs": [[0.2, 0.3]]}),
    ("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 4, "stream": False, "temperature": 0}),
    (
        "/v1/chat/completions",
        {"messages": _MESSAGES, "max_tokens": 4, "stream": True, "response_format": {"type": "json_object"}},
    ),
    ("/v1/adapters", {"adapter": "adapters/shelf", "name": "shelf"}),
)
_COUNTS: Final = (1, 2, 8, 63, 64, 65, 300)  # of names
_TILES: Final = ("auto", [1, 1], [2, 3], [8, 8], [64, 1], [9, 9], 1, 300, 10**9, "8x8", "1x0")
_THIN: Final = ((1, 1), (1, 3000), (3000, 1), (2, 20_000), (20_000, 3), (1, 65_535))
_CLAIMED: Final = (0, 1, 7, 8, 40_000, 65_536, 2**31 - 1, 2**31, 2**32 - 1)
_DEEP: Final = (100, 1_000, 50_000, 200_000)
_MANY: Final = (2_000, 99_000, 150_000)
_PLACEHOLDER: Final = "photonlite: deep or long"
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, 10**400, -(2**63), 2**64, 1e308, float("nan"), float("inf"), "", "x" * 5000, "\ud800"),
    *("\0", "[", "(a+)+$", "data:image/png;base64,", "data:,", "https://example.com/x.png", [], {}, [[]], [None] * 200),
    *({"$ref": "#"}, {"type": "array", "items": {"type": "array"}}, {"a": {"a": {"a": {}}}}, [0.5] * 9),
)
_METHODS: Final = (*b"GET PUT DELETE OPTIONS HEAD PATCH TRACE CONNECT POST P\0ST".split(), b"")
_PATHS: Final = (
    *b"/ /v1/models /metrics /docs /ready /openapi.json /../etc/passwd // /v1/query?a=%zz".split(),
    *b"/%00 * http://x/ /static/../app.py /v1/realtime \xff".split(),
    b"/v1/query?question=" + b"a" * 9000,
)
_HEADERS: Final = (
    *(b"Content-Length: -1", b"Content-Length: 99999999999", b"Content-Length: 5", b"Content-Length: x"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Connection: Upgrade\r\nUpgrade: websocket"),
    *(b"Host: evil.example", b"Host:", b"Expect: 100-continue", b"X: " + b"y" * 40_000, b"Content-Type: text/html"),
    *(b"Content-Type: multipart/form-data", b"Content-Type: image/png; charset=\xff", b"Authorization: Bearer \xff"),
    *(b"X-Request-ID: " + b"z" * 500, b"traceparent: 00-zz", b"no colon", b" folded", b": empty", b"Accept: */*\0"),
    *(b"Content-Encoding: gzip", b"Range: bytes=0-1", b"Origin: https://evil.example", b"Forwarded: for=1.2.3.4"),
)


class Mutation(NamedTuple):
    """A request as bytes; where the head was changed, a connection that just closes is a right answer."""

    data: bytes
    head_changed: bool
    done: str


def mutate(chance: random.Random) -> Mutation:
    path, template = chance.choice(TEMPLATES)
    body, kind, done = copy.deepcopy(template), JSON.encode(), []
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        _change(body, chance)
        done.append("value")
    if chance.random() < 0.2:
        done.append(_ask_for_much(body, chance))
    data = _filled(json.dumps(body).encode(), chance)
    if chance.random() < 0.25:
        data = _spoiled(bytearray(data), chance)
        done.append("bytes")
    head = [b"POST %b HTTP/1.1" % path.encode(), b"Host: 127.0.0.1", b"Content-Type: %b" % kind]
    if len(data) < 10_000 and chance.random() < 0.05:
        head.append(b"Transfer-Encoding: chunked")
        data = _chunked(data, chance)
        done.append("chunked")
    else:
        head.append(b"Content-Length: %d" % len(data))
    changed = chance.random() < 0.2
    for _ in range(chance.choice((1, 1, 2)) if changed else 0):
        done.append(_change_head(head, chance))
    request = b"\r\n".join([*head, b"Connection: close", b"", b""]) + data
    if changed and chance.random() < 0.2:
        request = bytes(_spoiled(bytearray(request), chance))
    return Mutation(request, changed, f"{path}: {', '.join(done) or 'nothing'}")


def _ask_for_much(body: dict[str, Any], chance: random.Random) -> str:
    """Make a body ask for much work; returns the kind of it."""
    match chance.randrange(4):
        case 0:
            body["object"] = [f"n{index}" for index in range(chance.choice(_COUNTS))]
            body["tile"] = chance.choice(_TILES)
            return "names and tiles"
        case 1:
            _set_image(body, _uri(chance.choice(_THIN)))
            return "thin image"
        case 2:
            _set_image(body, _uri(claimed=(chance.choice(_CLAIMED), chance.choice(_CLAIMED))))
            return "claimed size"
    body[chance.choice(list(body) or ["question"])] = _PLACEHOLDER
    return "deep or long"


def _set_image(body: dict[str, Any], uri: str) -> None:
    if "messages" in body:
        parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": uri}}]
        body["messages"] = [{"role": "user", "content": parts}]
    else:
        body["image_url"] = uri


def _filled(data: bytes, chance: random.Random) -> bytes:
    """Put deep or long JSON, which `json.dumps` would not write, in its place."""
    place = json.dumps(_PLACEHOLDER).encode()
    if place not in data:
        return data
    count, many = chance.choice(_DEEP), chance.choice(_MANY)
    deep = (b"[" * count + b"]" * count, b'{"a":' * count + b"0" + b"}" * count, b"[" + b"0," * many + b"0]")
    return data.replace(place, chance.choice(deep))


def _chunked(data: bytes, chance: random.Random) -> bytes:
    """Write a body in chunks, now and then with a wrong size or extensions that nobody reads."""
    size = chance.choice((1, 2, 16, 1000))
    more = chance.choice((b"", b"", b"", b";x", b";" + b"y" * 300))
    chunks = [
        b"%x%b\r\n%b\r\n" % (len(data[at : at + size]), more, data[at : at + size]) for at in range(0, len(data), size)
    ]
    end = chance.choice((b"0\r\n\r\n",) * 6 + (b"0\r\nX: y\r\n\r\n", b"-1\r\n\r\n", b"zz\r\n", b"ffffffffffffffff\r\n"))
    return b"".join(chunks) + end


def _change(value: Any, chance: random.Random) -> None:
    """Change one place of a nested value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.6:
            value = value[key]
            continue
        match chance.randrange(5):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[f"{key}{chance.choice(('s', '_', '0', 'é'))}"] = value[key]
            case _:
                value[key] = copy.deepcopy(chance.choice(_VALUES))
        return


def _spoiled(data: bytearray, chance: random.Random) -> bytes:
    match chance.randrange(4):
        case 0:
            return bytes(data[: chance.randrange(len(data) + 1)])
        case 1:
            start = chance.randrange(len(data) + 1)
            return bytes(data[:start] + chance.randbytes(chance.choice((1, 8, 300))) + data[start:])
        case 2:
            return bytes(data + data[chance.randrange(len(data) + 1) :])
    for _ in range(chance.choice((1, 2, 8)) if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _change_head(head: list[bytes], chance: random.Random) -> str:
    match chance.randrange(4):
        case 0:
            words = head[0].split(b" ")
            head[0] = b" ".join([chance.choice(_METHODS), *words[1:]])
            return "method"
        case 1:
            head[0] = b"%b %b HTTP/1.1" % (head[0].split(b" ")[0], chance.choice(_PATHS))
            return "path"
        case 2 if len(head) > 1:
            del head[chance.randrange(1, len(head))]
            return "header missing"
    head.insert(chance.randrange(1, len(head) + 1), chance.choice(_HEADERS))
    return "header added"

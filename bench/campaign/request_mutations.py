"""Requests that were valid once: bodies changed as JSON and as bytes, and heads that no client should write."""

import base64
import copy
import io
import json
import random
from typing import Any, Final, NamedTuple

from PIL import Image

from bench.campaign.client import JSON


def _png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), "navy").save(file, "PNG")
    return file.getvalue()


PNG_URI: Final = "data:image/png;base64," + base64.b64encode(_png()).decode()
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
)
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
    data = json.dumps(body).encode()
    if chance.random() < 0.25:
        data = _spoiled(bytearray(data), chance)
        done.append("bytes")
    head = [b"POST %b HTTP/1.1" % path.encode(), b"Host: 127.0.0.1", b"Content-Type: %b" % kind]
    head.append(b"Content-Length: %d" % len(data))
    changed = chance.random() < 0.2
    for _ in range(chance.choice((1, 1, 2)) if changed else 0):
        done.append(_change_head(head, chance))
    request = b"\r\n".join([*head, b"Connection: close", b"", b""]) + data
    if changed and chance.random() < 0.2:
        request = bytes(_spoiled(bytearray(request), chance))
    return Mutation(request, changed, f"{path}: {', '.join(done) or 'nothing'}")


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

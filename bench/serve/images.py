"""Distinct images, and requests with them."""

import base64
import io
import json
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

SCENE: Final = Path(__file__).resolve().parents[2] / "assets" / "desk.png"
_LONGEST_COMMENT: Final = 65533
"""Bytes of a JPEG's comment segment, its length included in its own first two."""


def jpegs(size: tuple[int, int], count: int, first: int = 0) -> list[bytes]:
    """Make images of one scene that differ in a few pixels, by their numbers from `first` on: no cache holds them."""
    with Image.open(SCENE) as scene:
        base = np.asarray(scene.convert("RGB").resize(size))

    def draw(number: int) -> bytes:
        pixels = base.copy()
        # Bits of the number as black and white squares of 8 x 8 pixels, which survive compression.
        for bit in range(20):
            pixels[:8, 8 * bit : 8 * bit + 8] = 255 * (number >> bit & 1)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
        return buffer.getvalue()

    with ThreadPoolExecutor() as threads:
        return list(threads.map(draw, range(first, first + count)))


def padded(jpeg: bytes, size: int) -> bytes:
    """Pad a JPEG with comments, which decoders skip, to a size in bytes, or up to three less."""
    head, rest = jpeg[:2], jpeg[2:]
    comments: list[bytes] = []
    while (missing := size - len(jpeg) - sum(len(comment) for comment in comments)) >= 4:
        length = min(missing - 2, _LONGEST_COMMENT)
        comments.append(b"\xff\xfe" + length.to_bytes(2, "big") + bytes(length - 2))
    return b"".join((head, *comments, rest))


def json_request(path: str, image: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return a JSON request with the image as a data URI and more fields."""
    url = "data:image/jpeg;base64," + base64.b64encode(image).decode()
    return _request(path, "application/json", json.dumps({"image_url": url, **fields}).encode())


def raw_request(path: str, image: bytes) -> bytes:
    """Return a request whose body is the image; the path has the query string."""
    return _request(path, "image/jpeg", image)


class Stock:
    """Requests that the server has not answered yet; `rounds` counts how often all were answered and reused."""

    def __init__(self, requests: list[bytes]) -> None:
        self.rounds = 0
        self._fresh = deque(requests)
        self._used: deque[bytes] = deque()

    def take(self) -> bytes:
        """Return a request that is not in flight; raises RuntimeError if all are."""
        if not (self._fresh or self._used):
            raise RuntimeError("all requests are in flight: make more images")
        if not self._fresh:
            self._fresh, self._used = self._used, self._fresh
            self.rounds += 1
        return self._fresh.popleft()

    def give_back(self, request: bytes, *, answered: bool) -> None:
        """Take a request back; the server has not seen the image of a refused one."""
        (self._used.append if answered else self._fresh.append)(request)


def _request(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body

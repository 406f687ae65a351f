"""What an image is called: a hash of its content, of what reads it and of whose it is."""

import hashlib
from functools import partial
from typing import Final

from PIL import Image

from photonlite.images.crew import ALONE, Crew

_PIECE: Final = 2**19
"""Bytes of pixels that one thread hashes at a time, about 0.25 ms."""


def image_key(
    image: Image.Image, pixels: bytes, adapter: str = "", cache_salt: str = "", *, crew: Crew = ALONE
) -> str:
    """Name an image by its content: the hex SHA-256 over size, mode and pixels, adapter and cache_salt.

    The length of each part goes before it, so that no two different lists of parts read alike. For the pixels stand
    the SHA-256 digests of pieces of 512 KiB, one behind the other, which several threads can compute.

    Args:
        image: Decoded.
        pixels: Its pixels.
        adapter: Name of the adapter that reads it.
        cache_salt: Of the tenant; empty for none.
        crew: The threads that share the work.
    """
    parts = [f"{image.width}x{image.height}".encode(), image.mode.encode(), _digests(pixels, crew)]
    parts += [text.encode("utf-8", "surrogatepass") for text in (adapter, cache_salt)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _digests(pixels: bytes, crew: Crew) -> bytes:
    view = memoryview(pixels)
    pieces = [view[start : start + _PIECE] for start in range(0, len(view), _PIECE)]
    found = [b""] * len(pieces)

    def hash_piece(index: int) -> None:
        found[index] = hashlib.sha256(pieces[index]).digest()

    crew.run([partial(hash_piece, index) for index in range(len(pieces))])
    return b"".join(found)

"""Small copies of images, from which results draw themselves in notebooks."""

import io
import sys
from typing import Final

from PIL import Image

MAX_SIDE: Final = 512
MAX_BYTES: Final = 64 * 1024


def make_thumbnail(image: Image.Image) -> bytes:
    """Return a JPEG of at most MAX_SIDE pixels a side and MAX_BYTES bytes; small images keep their size."""
    for side in (MAX_SIDE, MAX_SIDE // 2, MAX_SIDE // 4):
        small = _shrunk(image, side).convert("RGB")
        for quality in (90, 75, 50):
            file = io.BytesIO()
            small.save(file, "JPEG", quality=quality, optimize=True)
            if file.tell() <= MAX_BYTES:
                return file.getvalue()
    raise AssertionError("an image of 128 pixels a side takes less than 64 KiB")


def _shrunk(image: Image.Image, side: int) -> Image.Image:
    scale = side / max(image.size)
    if scale >= 1:
        return image
    width, height = (max(1, round(each * scale)) for each in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # Only what runs in IPython has imported it.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")

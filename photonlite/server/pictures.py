"""Pictures on their way in: base64 to bytes, and how much memory one will take, from its header alone."""

import base64
import binascii
import io
import re

from PIL import Image

from photonlite.server.errors import HttpError

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_DATA_URI = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_SHOWN = 40
# Some encoders break lines.
_SPACE = "\r\n\t "


def is_remote(value: str) -> bool:
    """Tell a URL that must be fetched from one that holds its picture."""
    return re.match(r"https?://", value, re.IGNORECASE) is not None


def from_data_uri(value: str) -> bytes:
    """Read `data:image/jpeg;base64,...`. The declared type does not matter: the bytes tell what they are.

    Raises:
        HttpError: 400, it is no base64 data URI, or its base64 is damaged.
    """
    head = _DATA_URI.match(value)
    if head is None or not head[0].lower().endswith(";base64,"):
        raise HttpError(
            400,
            f"image_url {value[:_SHOWN]!r} is no data URI in base64: send data:image/jpeg;base64,...",
            code="invalid_image_url",
        )
    code = value[head.end() :]
    if any(space in code for space in _SPACE):
        code = code.translate(str.maketrans("", "", _SPACE))
    try:
        return base64.b64decode(code, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise HttpError(400, f"the base64 of image_url is damaged: {cause}", code="invalid_image_url") from cause


def decoded_bytes(data: bytes) -> int:
    """Tell how many bytes a picture takes as RGB, from its header; 0 where only a decoder can say what is wrong."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return 3 * image.width * image.height
    except Exception:  # whatever is wrong with it, the decoder tells the client
        return 0

"""Pixels of any kind to 8-bit RGB: Pillow modes and numpy arrays.

Colour follows Pillow's `convert("RGB")`, as in the reference: alpha is dropped and not composited, colour profiles are
ignored, palettes are looked up, CMYK is inverted without a profile. It differs where `convert` would clip: 16-bit and
float pixels are scaled to the 8-bit range.

Full scale, the value that becomes 255:

| pixels | full scale |
|---|---|
| mode I;16 (16-bit PNG, TIFF), mode I of a 16-bit PGM | 65535 |
| mode I otherwise | 255 if no value is above it (as `convert("I")` makes them), else 65535 |
| mode F | 1 if no value is above it, else 255 (as `convert("F")` makes them) |
| float array | 1 |
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from photonlite.errors import ImageShapeError

_WANTED: Final = "hand in an array of shape [height, width, 3] and dtype uint8"
_STRAIGHT: Final = {"La": "LA", "RGBa": "RGBA"}
_BLOCK: Final = 2**18  # values that are scaled at a time


def image_to_rgb(image: Image.Image) -> Image.Image:
    """Convert a loaded image of any Pillow mode to a new RGB image without metadata or shared memory."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image)
        rgb = Image.fromarray(_to_uint8(values, _full_scale(image, values), f"mode {image.mode}")).convert("RGB")
    else:
        if "transparency" in image.info:  # Pillow would carry it over, and warns where it cannot
            image = image.copy()
            del image.info["transparency"]
        if image.mode in _STRAIGHT:  # premultiplied alpha cannot be converted to RGB directly
            image = image.convert(_STRAIGHT[image.mode])
        rgb = image.convert("RGB")
    rgb.info = {}
    return rgb


def array_to_rgb(array: npt.NDArray[Any]) -> Image.Image:
    """Convert [H, W] or [H, W, 1, 3 or 4], uint8 or float in [0, 1], to a new RGB image that shares no memory."""
    _check_array(array)
    if array.ndim == 3:
        array = array[..., 0] if array.shape[2] == 1 else array[..., :3]
    if array.dtype != np.uint8:
        array = _to_uint8(array, 1.0, f"{array.dtype} array")
    image = Image.fromarray(array)
    return image if image.mode == "RGB" else image.convert("RGB")  # Pillow aliases grey arrays, and copies RGB ones


def rgb_bytes(image: Image.Image, top: int = 0, bottom: int | None = None) -> bytes:
    """Return some rows of an RGB image, ``[H, W, 3]``, in half the time of `tobytes`, which joins small blocks."""
    bottom = image.height if bottom is None else bottom
    size = 3 * image.width * (bottom - top)
    encoder = Image._getencoder(image.mode, "raw", image.mode)
    try:
        encoder.setimage(image.im, (0, top, image.width, bottom))
        _, status, data = encoder.encode(size)
    finally:
        encoder.cleanup()
    if status < 0 or len(data) != size:
        raise AssertionError(f"packing {image.width}x{image.height} pixels gave {len(data)} bytes, status {status}")
    return bytes(data)


def _check_array(array: npt.NDArray[Any]) -> None:
    shape = list(array.shape)
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise ImageShapeError(
            f"an array of dtype {array.dtype} is not an image: {_WANTED}, or floats in [0, 1]; "
            "scale wider integers yourself, for 16 bits with (array // 257).astype('uint8')"
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = "; channels come last: array.transpose(1, 2, 0)"
        elif array.ndim == 4:
            hint = "; one image at a time: array[0]"
        raise ImageShapeError(f"an array of shape {shape} is not an image: {_WANTED}{hint}")
    if array.size == 0:
        raise ImageShapeError(f"an array of shape {shape} has no pixels: height and width must be at least 1")


def _full_scale(image: Image.Image, values: npt.NDArray[Any]) -> float:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return 65535.0
    narrow, wide = (1.0, 255.0) if image.mode == "F" else (255.0, 65535.0)
    return narrow if values.max() <= narrow else wide


def _to_uint8(values: npt.NDArray[Any], full_scale: float, what: str) -> npt.NDArray[np.uint8]:
    """Scale `full_scale` to 255 and round; values that would not round to 0..255 are refused, never clipped."""
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):  # NaN anywhere makes both NaN
        raise ImageShapeError(f"{what} holds NaN or infinity: replace them first, with numpy.nan_to_num")
    half_step = 0.5 / 255 * full_scale
    if low < -half_step or high > full_scale + half_step:
        raise ImageShapeError(
            f"{what} holds values from {low:g} to {high:g}, outside 0 to {full_scale:g}: "
            "scale the values to that range, or convert them to uint8"
        )
    scaled = np.empty(values.shape, np.uint8)
    rows = max(1, _BLOCK // max(1, values[0].size))  # float copies of the whole would multiply the memory
    for top in range(0, len(values), rows):
        block = np.rint(values[top : top + rows] * np.float32(255 / full_scale))
        scaled[top : top + rows] = np.clip(block, 0, 255)
    return scaled

"""Opening an image to draw on: RGB, upright, on a copy."""

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from photonlite.errors import ImageDecodeError, ImageNotFoundError, ImageShapeError, ImageTooLargeError

PlotImage = Image.Image | NDArray[Any] | str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO


def open_image(image: PlotImage) -> Image.Image:
    """Return a new upright RGB image, with transparency laid over white.

    Arrays are [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] of uint8, or of floats in [0, 1]. File objects are read from
    their start.

    Raises:
        ImageNotFoundError: No file is at the path.
        ImageDecodeError: The bytes are not an image, or end too early.
        ImageTooLargeError: The file is over Pillow's limit against decompression bombs.
        ImageShapeError: The array has another shape, type or range.
    """
    if isinstance(image, np.ndarray):
        return _to_rgb(_from_array(image))
    if isinstance(image, Image.Image):
        return _to_rgb(image)
    source = io.BytesIO(image) if isinstance(image, bytes | bytearray | memoryview) else image
    try:
        with Image.open(source) as opened:
            return _to_rgb(opened)
    except FileNotFoundError as error:
        raise ImageNotFoundError(f"There is no image at {image!r}. Check the path.") from error
    except Image.DecompressionBombError as error:
        raise ImageTooLargeError(f"{error} Scale the image down before it is drawn on.") from error
    except (OSError, SyntaxError) as error:
        name = repr(str(source)) if isinstance(source, str | Path) else "The data"
        raise ImageDecodeError(
            f"{name} cannot be read as an image: {error}. Give a whole PNG, JPEG or WebP."
        ) from error


def _from_array(array: NDArray[Any]) -> Image.Image:
    channels = array.shape[2] if array.ndim == 3 else 1
    if np.issubdtype(array.dtype, np.floating) and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4) or array.size == 0:
        raise ImageShapeError(
            f"An array of shape {array.shape} and type {array.dtype} is not an image. Give uint8, or floats in [0, "
            "1], with 1, 3 or 4 channels: [height, width] or [height, width, channels]."
        )
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and channels == 1 else array)


def _to_rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        upright = upright.convert("I")
    if upright.mode == "I":
        # 16-bit grey: convert() would clip every value above 255 to white.
        upright = Image.fromarray((np.asarray(upright).clip(0, 65535) // 257).astype(np.uint8))
    if upright.has_transparency_data:
        layer = upright.convert("RGBA")
        upright = Image.new("RGBA", layer.size, "white")
        upright.alpha_composite(layer)
    return upright.convert("RGB")

"""Settings of the process: frozen dataclasses, and the only reader of environment variables.

| variable | field | default |
|---|---|---|
| `PHOTONLITE_MAX_PIXELS` | `ImageLimits.max_pixels` | 64 000 000 |
| `PHOTONLITE_MAX_BYTES` | `ImageLimits.max_bytes` | 268 435 456 (256 MiB) |

A variable that is set to nothing counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from photonlite.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """How large a picture may be.

    Attributes:
        max_pixels: Width times height, compared with the header before any pixel is decoded.
        max_bytes: Size of the encoded file.

    Raises:
        SettingsError: A limit is not a whole number above 0.
    """

    max_pixels: int = 64_000_000
    max_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"{name} is {value!r}: give a whole number of at least 1, such as 64_000_000")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> ImageLimits:
        """Take the limits from environment variables; what is unset keeps its default.

        Args:
            environ: Variable names and values; the process's own unless given.

        Raises:
            SettingsError: A variable holds no whole number above 0.
        """
        return cls(
            max_pixels=_positive_int(environ, "PHOTONLITE_MAX_PIXELS", cls().max_pixels),
            max_bytes=_positive_int(environ, "PHOTONLITE_MAX_BYTES", cls().max_bytes),
        )


DEFAULT_IMAGE_LIMITS: Final = ImageLimits()


def _positive_int(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise SettingsError(
            f"the environment variable {variable} is {text[:40]!r}: "
            f"set it to a whole number of at least 1, such as {default}, or unset it"
        )
    return value

"""Settings of image processors: in a file of their own or, as newer libraries write them, in one for all modalities."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from photonlite.errors import ConfigError
from photonlite.models.shards import read_json

PROCESSOR_NAME: Final = "preprocessor_config.json"
_COMBINED: Final = "processor_config.json"


def read_processor(folder: Path) -> Mapping[str, Any] | None:
    """Return the settings of a checkpoint's image processor, None without any; ConfigError for an unreadable file.

    Where a folder has both files the newer kind counts, as in transformers: a checkpoint that is saved again into its
    folder leaves the older file there. Older libraries used the newer name for other settings, which are not read.
    """
    combined = folder / _COMBINED
    inner = read_json(combined, ConfigError).get("image_processor") if combined.is_file() else None
    if isinstance(inner, Mapping):
        return inner
    own = folder / PROCESSOR_NAME
    return read_json(own, ConfigError) if own.is_file() else None


def check_processor(raw: Mapping[str, Any], wanted: Mapping[str, object]) -> None:
    """Raise ConfigError if an image processor does not resize bicubically and normalise, with values as wanted."""
    always = {"resample": 3, "do_resize": True, "do_rescale": True, "do_normalize": True}
    for name, value in {**always, **wanted}.items():
        if (given := raw.get(name, value)) != value:
            raise ConfigError(f"{name} of the image processor is {given!r:.60}: this model reads images with {value}")
    scale = raw.get("rescale_factor", 1 / 255)
    if not isinstance(scale, int | float) or not math.isclose(scale, 1 / 255, rel_tol=1e-6):
        raise ConfigError(f"rescale_factor of the image processor is {scale!r:.60}: photonlite supports 1/255 only")

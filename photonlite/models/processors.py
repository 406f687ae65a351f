"""Settings of image processors: in a file of their own or, as newer libraries write them, in one for all modalities."""

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

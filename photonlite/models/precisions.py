"""Precisions of a model's weights, as `load` is asked for them and as a config.json states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from photonlite.config import Precision, VisionWeights, Weights
from photonlite.errors import ConfigError, SettingsError

METHOD = "photonlite"
"""`quant_method` in the `quantization_config` of checkpoints that `photonlite quantize` has written."""

TEXT_PRECISIONS: tuple[Precision | None, ...] = (None, "int8", "int4")
"""Precisions that a decoder in full precision can be loaded with, best first."""


@dataclass(frozen=True, slots=True)
class Precisions:
    """Precisions of a model's linear layers; None for the model's type."""

    text: Precision | None = None  # of the decoder's blocks and its head
    vision: Precision | None = None  # of the image encoder
    stored: bool = False  # whether the files hold them in photonlite's own form
    moments: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of inputs, by layer; see `calibration`

    def __bool__(self) -> bool:
        return self.text is not None or self.vision is not None

    def __str__(self) -> str:
        return " and ".join(f"{part} in {one}" for part, one in (("text", self.text), ("vision", self.vision)) if one)

    def include(self, asked: Precisions) -> bool:
        """Return whether these are what was asked for, where anything was."""
        return asked.text in (None, self.text) and asked.vision in (None, self.vision)

    def section(self) -> dict[str, Any]:
        """Return the `quantization_config` of files that hold them."""
        return {"quant_method": METHOD, "weights": self.text, "vision_weights": self.vision}


def check_precisions(weights: Weights, vision_weights: VisionWeights) -> None:
    """Raise SettingsError unless these are values of the arguments of `load`."""
    for name, value, known in (
        ("weights", weights, get_args(Weights)),
        ("vision_weights", vision_weights, get_args(VisionWeights)),
    ):
        if value not in known:
            raise SettingsError(f"{name} is {value!r:.60}: it must be {' or '.join(map(repr, known))}")


def stored_precisions(raw: Mapping[str, Any]) -> Precisions:
    """Return what a config.json says about the precisions of its own files; ConfigError for unknown ones."""
    section = raw.get("quantization_config")
    if not isinstance(section, Mapping) or section.get("quant_method") != METHOD:
        return Precisions()
    text, vision = section.get("weights"), section.get("vision_weights")
    if text not in (None, *get_args(Precision)) or vision not in (None, *get_args(Precision)):
        raise ConfigError(
            f"quantization_config has weights {text!r:.60} and vision_weights {vision!r:.60}: photonlite knows "
            f"{', '.join(get_args(Precision))}"
        )
    return Precisions(text, vision, stored=True)


def is_foreign(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json says that another library has quantised its files."""
    section = raw.get("quantization_config")
    return bool(section) and not (isinstance(section, Mapping) and section.get("quant_method") == METHOD)

"""Configuration of a Qwen-VL checkpoint, read from its config.json; every dimension comes from there.

| | Qwen2.5-VL | Qwen3-VL |
|---|---|---|
| model_type | `qwen2_5_vl` | `qwen3_vl` |
| sizes of the decoder | at the top, or in `text_config` | in `text_config` |
| rotary settings | `rope_scaling` and `rope_theta`, or `rope_parameters` | the same |
| three axes of rotary frequencies | in contiguous sections | interleaved |
| decoder | biases of q, k and v | norms of q and k |
| vision tower | windows, gated MLP, no learned positions | learned positions, deepstack |
| coordinates in answers | pixels of the resized image | 0 to 1000 |
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from photonlite.errors import ConfigError
from photonlite.models.precisions import is_foreign
from photonlite.models.sections import Section, object_in, rotary_of


@dataclass(frozen=True)
class Version:
    """What the two generations differ in, beside their sizes."""

    name: str
    newer: bool  # Qwen3-VL: norms of q and k, interleaved rotary axes, learned positions, deepstack
    sections: tuple[int, int, int]  # rotary frequencies of time, height and width, where the file has none
    rope_theta: float
    norm_eps: float
    vision_act: str
    vision: Mapping[str, Any] = field(default_factory=dict)  # what vision_config means where it leaves a value out


# Fine-tuned models that transformers 4.49 to 4.51 saved lack what equals the default of the public class.
_VISION_2_5 = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "window_size": 112,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": (7, 15, 23, 31),
}
VERSIONS: Mapping[str, Version] = {
    "qwen2_5_vl": Version("Qwen2.5-VL", False, (16, 24, 24), 1_000_000.0, 1e-5, "silu", _VISION_2_5),
    "qwen3_vl": Version("Qwen3-VL", True, (24, 20, 20), 500_000.0, 1e-6, "gelu_pytorch_tanh"),
}
"""Generations by `model_type`."""

_ID_KEYS = {name: name.replace("_id", "_token_id") for name in ("image_id", "vision_start_id", "vision_end_id")}
_ROPE_TYPES = (None, "default", "mrope")


@dataclass(frozen=True)
class TextConfig:
    """The text decoder."""

    dim: int
    ff_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    norm_eps: float
    rope_theta: float
    sections: tuple[int, int, int]  # rotary frequencies of time, height and width; half a head in all
    interleaved: bool  # the axes take turns along the frequencies; else one section follows the other
    tied: bool  # the head is the embedding

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"num_key_value_heads ({self.kv_heads}) must divide num_attention_heads ({self.heads}) in config.json"
            )
        half = self.head_dim // 2
        if self.head_dim % 2 or sum(self.sections) != half or min(self.sections) < 0:
            raise ConfigError(
                f"mrope_section is {list(self.sections)} for heads of {self.head_dim} numbers: it must be three whole "
                f"numbers whose sum is half of that, {self.head_dim / 2:g}"
            )
        if self.interleaved and max(3 * self.sections[1] - 2, 3 * self.sections[2] - 1) >= half:
            raise ConfigError(
                f"mrope_section is {list(self.sections)}: height and width take every third of {half} frequencies, "
                "which are not enough"
            )


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower; `window` or `table` and `deepstack` are 0 or empty in the generation without them."""

    dim: int
    ff_dim: int
    layers: int
    heads: int
    patch: int  # side of a patch in pixels
    merge: int  # patches along a side of one embedding
    frames: int  # images a patch spans; a still image is repeated
    out_dim: int
    rope_theta: float = 10_000.0
    window: int = 0  # side of a window of attention, in embeddings
    full_layers: tuple[int, ...] = ()  # layers that attend to the whole image; without windows all do
    table: int = 0  # side of the table of learned positions
    deepstack: tuple[int, ...] = ()  # layers whose features are added to the decoder's first layers

    def __post_init__(self) -> None:
        if self.dim % self.heads or (self.dim // self.heads) % 4:
            raise ConfigError(
                f"vision_config: num_heads ({self.heads}) must divide hidden_size ({self.dim}) into multiples of 4"
            )
        for name, chosen in (
            ("fullatt_block_indexes", self.full_layers),
            ("deepstack_visual_indexes", self.deepstack),
        ):
            if list(chosen) != sorted(set(chosen)) or any(not 0 <= layer < self.layers for layer in chosen):
                raise ConfigError(
                    f"vision_config.{name} is {list(chosen)}: it must list layers from 0 to {self.layers - 1} in order"
                )

    @property
    def factor(self) -> int:
        """Pixels along a side of one embedding: sides of a resized image are multiples of it."""
        return self.patch * self.merge

    @property
    def patch_dim(self) -> int:
        """Numbers of one patch, as the tower reads it."""
        return 3 * self.frames * self.patch**2


@dataclass(frozen=True)
class QwenConfig:
    """A checkpoint's config.json, validated."""

    version: Version
    text: TextConfig
    vision: VisionConfig
    image_id: int
    vision_start_id: int
    vision_end_id: int

    def __post_init__(self) -> None:
        if self.vision.out_dim != self.text.dim:
            raise ConfigError(
                f"vision_config.out_hidden_size is {self.vision.out_dim}, but the decoder's hidden_size is "
                f"{self.text.dim}: they must be equal"
            )
        if len(self.vision.deepstack) > self.text.layers:
            raise ConfigError(
                f"vision_config.deepstack_visual_indexes lists {len(self.vision.deepstack)} layers, more than the "
                f"decoder's {self.text.layers}"
            )
        for name, key in _ID_KEYS.items():
            if (index := getattr(self, name)) >= self.text.vocab_size:
                raise ConfigError(f"{key} is {index}, but the vocabulary has {self.text.vocab_size} tokens")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "QwenConfig":
        """Read a config.json as released or as newer libraries write it; ConfigError if invalid."""
        kind = raw.get("model_type")
        version = VERSIONS.get(kind) if isinstance(kind, str) else None
        if version is None:
            raise ConfigError(f"model_type {kind!r:.60} is not of this family: it has {', '.join(VERSIONS)}")
        if is_foreign(raw):
            raise ConfigError("this checkpoint is quantised, which is not supported: use the release in bfloat16")
        nested = raw.get("text_config") is not None
        text = Section("text_config" if nested else "", object_in(raw, "text_config") if nested else raw)
        top = Section("", raw)
        tied = raw.get("tie_word_embeddings", text.values.get("tie_word_embeddings", False))
        return cls(
            version=version,
            text=_text(text, version, tied=bool(tied or text.values.get("tie_word_embeddings"))),
            vision=_vision(object_in(raw, "vision_config"), version),
            **{name: top.whole(key, least=0) for name, key in _ID_KEYS.items()},
        )


def _text(section: Section, version: Version, *, tied: bool) -> TextConfig:
    section.must_be("hidden_act", None, "silu")
    section.must_be("use_sliding_window", None, False)
    section.must_be("attention_bias", None, False)
    dim, heads = section.whole("hidden_size"), section.few("num_attention_heads")
    if "head_dim" not in section.values and dim % heads:
        raise ConfigError(f"num_attention_heads ({heads}) must divide hidden_size ({dim}) in config.json")
    rotary, theta = rotary_of(section, version.rope_theta)
    rotary.must_be("rope_type", *_ROPE_TYPES)
    rotary.must_be("type", *_ROPE_TYPES)
    rotary.must_be("mrope_interleaved", None, version.newer)
    sections = rotary.layers("mrope_section") if "mrope_section" in rotary.values else version.sections
    if len(sections) != 3:
        raise ConfigError(f"{rotary.path('mrope_section')} is {list(sections)}: it must be three whole numbers")
    return TextConfig(
        dim=dim,
        ff_dim=section.whole("intermediate_size"),
        layers=section.few("num_hidden_layers"),
        heads=heads,
        kv_heads=section.few("num_key_value_heads", heads),
        head_dim=section.whole("head_dim", dim // heads),
        vocab_size=section.whole("vocab_size"),
        max_context=section.whole("max_position_embeddings"),
        norm_eps=section.positive("rms_norm_eps", version.norm_eps),
        rope_theta=theta,
        sections=(sections[0], sections[1], sections[2]),
        interleaved=version.newer,
        tied=tied,
    )


def _vision(values: Mapping[str, Any], version: Version) -> VisionConfig:
    said = {name: value for name, value in values.items() if value is not None}
    section = Section("vision_config", {**version.vision, **said})
    section.must_be("hidden_act", None, version.vision_act)
    for channels in ("in_channels", "in_chans"):
        section.must_be(channels, None, 3)
    patch, merge = section.few("patch_size"), section.few("spatial_merge_size", 2)
    rotary = section.inner("rope_parameters")
    rotary.must_be("rope_type", None, "axial")
    config = VisionConfig(
        dim=section.whole("hidden_size"),
        ff_dim=section.whole("intermediate_size"),
        layers=section.few("depth"),
        heads=section.few("num_heads"),
        patch=patch,
        merge=merge,
        frames=section.few("temporal_patch_size", 2),
        out_dim=section.whole("out_hidden_size"),
        rope_theta=rotary.positive("rope_theta", VisionConfig.rope_theta),
    )
    if not version.newer:
        window = section.whole("window_size") // (patch * merge)
        if window < 1:
            raise ConfigError(f"vision_config.window_size is less than one embedding of {patch * merge} pixels")
        return dataclasses.replace(config, window=window, full_layers=section.layers("fullatt_block_indexes"))
    positions = section.whole("num_position_embeddings")
    table = round(positions**0.5)
    if table**2 != positions:
        raise ConfigError(f"vision_config.num_position_embeddings is {positions}: it must be a square, such as 2304")
    return dataclasses.replace(config, table=table, deepstack=section.layers("deepstack_visual_indexes"))

"""Configuration of a Moondream checkpoint, read from its config.json; every dimension comes from here.

The public Moondream 2 release ships an empty configuration and keeps its dimensions in code: they are the defaults
below. `model_type` names the family, which decides rules and defaults that neither tensors nor released files show.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from photonlite.errors import ConfigError
from photonlite.images.crops import CropSpec

T = TypeVar("T")

RELEASED_VOCAB_SIZE = 51200  # rows of the embedding in all public releases


@dataclass(frozen=True)
class Family:
    """Rules and defaults of a family of checkpoints."""

    name: str
    any_id_continues: bool = False  # detect and point continue with any id but the end, not just the coordinate id
    suppressed_in_answer: tuple[str, ...] = ()  # ids that never occur in an answer or caption after its first token
    suppressed_in_reasoning: tuple[str, ...] = ()  # the same for reasoning
    answer_id_before_reasoning: bool = False  # a prompt for reasoning has the answer id before the thinking id
    templates: Mapping[str, Any] = field(default_factory=dict)  # in the released vocabulary, for files without any
    region: Mapping[str, Any] = field(default_factory=dict)  # defaults that differ from Moondream 2's
    text: Mapping[str, Any] = field(default_factory=dict)  # defaults that differ from Moondream 2's
    controls_to: int = 21  # ids below this are control ids, which a path never contains


_TEMPLATES: dict[str, Any] = {
    "caption": {"short": [1, 32708, 2, 12492, 3], "normal": [1, 32708, 2, 6382, 3], "long": [1, 32708, 2, 4059, 3]},
    "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
    "point": {"prefix": [1, 2581, 2], "suffix": [3]},
}
# The released weights of Moondream 2 were trained with the answer id twice.
_QUERY_2 = {"prefix": [1, 15381, 2], "suffix": [3, 3], "reasoning_suffix": [3, 4]}
_QUERY_3 = {"prefix": [1, 15381, 2], "suffix": [3], "reasoning_suffix": [4]}
_SEGMENT_3 = {"prefix": [1, 17374, 2], "suffix": [3]}
_LINEAR = {"decoder": "linear", "norm": True}

_MOONDREAM_2 = Family(
    "moondream2",
    any_id_continues=True,
    suppressed_in_answer=("answer_id",),
    suppressed_in_reasoning=("eos_id", "size_id"),
    answer_id_before_reasoning=True,
    templates=_TEMPLATES | {"query": _QUERY_2},
)
_MOONDREAM_3 = Family(
    "moondream3",
    templates=_TEMPLATES | {"query": _QUERY_3, "segment": _SEGMENT_3},
    region=_LINEAR,
    text={"rope_theta": 1_500_000.0, "max_context": 32768},
)
FAMILIES = {
    "moondream2": _MOONDREAM_2,
    "moondream": _MOONDREAM_2,  # as released files name it
    "moondream1": _MOONDREAM_2,  # as released files name it
    "moondream3": _MOONDREAM_3,
    "photonlite_nano": Family("photonlite_nano", region=_LINEAR),
}
"""Families by `model_type`."""


@dataclass(frozen=True)
class TextConfig:
    """The text decoder. `prefix_attn` of the public files is not read: the prefix length follows from the grid."""

    dim: int = 2048
    ff_dim: int = 8192
    n_layers: int = 24
    vocab_size: int = 51200
    max_context: int = 2048
    n_heads: int = 32
    n_kv_heads: int | None = None
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        _divides("text", "n_heads", self.n_heads, "dim", self.dim)
        _divides("text", "n_kv_heads", self.kv_heads, "n_heads", self.n_heads)
        _divides("text", "4", 4, "dim / n_heads", self.head_dim)
        if isinstance(self.rope_theta, bool) or not isinstance(self.rope_theta, int | float) or self.rope_theta <= 0:
            raise ConfigError(f"text.rope_theta is {self.rope_theta!r}: it must be a number above 0, such as 10000.0")

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated: the first half."""
        return self.head_dim // 2


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower, its tiling and the projector."""

    enc_dim: int = 1152
    enc_patch_size: int = 14
    enc_n_layers: int = 27
    enc_ff_dim: int = 4304
    enc_n_heads: int = 16
    proj_out_dim: int = 2048
    proj_inner_dim: int = 8192
    crop_size: int = 378
    in_channels: int = 3
    max_crops: int = 12
    overlap_margin: int = 4

    def __post_init__(self) -> None:
        _divides("vision", "enc_n_heads", self.enc_n_heads, "enc_dim", self.enc_dim)
        if self.in_channels != 3:
            raise ConfigError(f"vision.in_channels is {self.in_channels}: images are read as RGB, set it to 3")
        _ = self.crops  # checks the lengths of crops

    @functools.cached_property
    def crops(self) -> CropSpec:
        return CropSpec(self.crop_size, self.enc_patch_size, self.overlap_margin, self.max_crops)

    @property
    def grid(self) -> int:
        """Patches along one side of a crop."""
        return self.crops.grid

    @property
    def n_patches(self) -> int:
        """Patches of one crop, and embeddings of one image."""
        return self.grid**2

    @property
    def patch_dim(self) -> int:
        return self.in_channels * self.enc_patch_size**2


@dataclass(frozen=True)
class RegionConfig:
    """The coordinate and size heads."""

    dim: int = 2048
    coord_feat_dim: int = 256
    coord_out_dim: int = 1024
    size_feat_dim: int = 512
    size_out_dim: int = 2048
    inner_dim: int = 8192
    decoder: Literal["mlp", "linear"] = "mlp"
    norm: bool = False

    def __post_init__(self) -> None:
        for name in ("coord_feat_dim", "size_feat_dim", "size_out_dim"):
            _divides("region", "2", 2, name, getattr(self, name))
        if self.decoder not in ("mlp", "linear"):
            raise ConfigError(f"region.decoder is {self.decoder!r}: it is 'mlp' or 'linear'")

    @property
    def size_bins(self) -> int:
        return self.size_out_dim // 2


@dataclass(frozen=True)
class Template:
    """Ids around the argument of a skill; with reasoning it has another suffix."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    reasoning_suffix: tuple[int, ...]


@dataclass(frozen=True)
class TokenizerConfig:
    """Special ids and the prompt templates of each skill; the checkpoint lacks a skill without a template.

    `reasoning` and `spatial_refs` say whether the checkpoint was trained for them; public ones omit them and were.
    """

    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int = 4
    coord_id: int = 5
    size_id: int = 6
    start_ground_points_id: int = 7
    end_ground_id: int = 9
    reasoning: bool = True
    spatial_refs: bool = True
    caption: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    query: Template | None = None
    detect: Template | None = None
    point: Template | None = None
    segment: Template | None = None

    @property
    def skills(self) -> tuple[str, ...]:
        return tuple(name for name in ("caption", "query", "detect", "point", "segment") if getattr(self, name))


@dataclass(frozen=True)
class MoondreamConfig:
    """A checkpoint's config.json, validated."""

    family: Family
    text: TextConfig
    vision: VisionConfig
    region: RegionConfig
    tokenizer: TokenizerConfig

    def __post_init__(self) -> None:
        for name, dim in (("vision.proj_out_dim", self.vision.proj_out_dim), ("region.dim", self.region.dim)):
            if dim != self.text.dim:
                raise ConfigError(f"{name} is {dim} but text.dim is {self.text.dim}: they must be equal")
        if self.prefix_length >= self.text.max_context:
            raise ConfigError(
                f"an image takes {self.prefix_length} positions but text.max_context is {self.text.max_context}"
            )

    @property
    def prefix_length(self) -> int:
        """Positions of BOS and one image: the bidirectional block at the start of a sequence."""
        return 1 + self.vision.n_patches

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "MoondreamConfig":
        """Read a config.json, dimensions at the top or, as in releases, under "config"; ConfigError if invalid."""
        inner = raw.get("config")
        merged = {**raw, **inner} if isinstance(inner, Mapping) else dict(raw)
        kind = str(merged.get("model_type") or "moondream2")
        family = FAMILIES.get(kind)
        if family is None:
            raise ConfigError(
                f"model_type {kind!r} is not a family photonlite knows; it knows {', '.join(sorted(FAMILIES))}"
            )
        if "moe" in _section(merged, "text") or (kind == "moondream3" and "text" not in merged):
            raise ConfigError("this checkpoint has a mixture-of-experts text decoder, which photonlite cannot run yet")
        text = _build(TextConfig, "text", {**family.text, **_section(merged, "text")})
        return cls(
            family=family,
            text=text,
            vision=_build(VisionConfig, "vision", _section(merged, "vision")),
            region=_build(RegionConfig, "region", {**family.region, **_section(merged, "region")}),
            tokenizer=_tokenizer(_section(merged, "tokenizer"), family, text.vocab_size),
        )


def _tokenizer(section: Mapping[str, Any], family: Family, vocab_size: int) -> TokenizerConfig:
    given = section.get("templates")
    if given is None:
        # The templates are ids of the released vocabulary: checkpoints with another one have none.
        given = family.templates if vocab_size == RELEASED_VOCAB_SIZE else {}
    flags = ("reasoning", "spatial_refs")
    plain = {name: value for name, value in section.items() if name.endswith("_id") or name in flags}
    base = _build(TokenizerConfig, "tokenizer", plain)
    thinking = [base.answer_id, base.thinking_id] if family.answer_id_before_reasoning else [base.thinking_id]
    try:
        templates: dict[str, Any] = {
            name: Template(tuple(t["prefix"]), tuple(t["suffix"]), tuple(t.get("reasoning_suffix", thinking)))
            for name in ("query", "detect", "point", "segment")
            if (t := given.get(name))
        }
        templates["caption"] = {length: tuple(ids) for length, ids in (given.get("caption") or {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"tokenizer.templates cannot be read: {error!r}; each skill has lists prefix and suffix"
        ) from error
    tokenizer = dataclasses.replace(base, **templates)
    _check_ids(tokenizer, vocab_size)
    return tokenizer


def _check_ids(tokenizer: TokenizerConfig, vocab_size: int) -> None:
    """Check that every id has a row in the embedding."""
    for name, value in dataclasses.asdict(tokenizer).items():
        parts = value.values() if isinstance(value, Mapping) else ((value,),) if name.endswith("_id") else ()
        for token_id in itertools.chain.from_iterable(parts):
            if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
                raise ConfigError(
                    f"tokenizer: {name} has the id {token_id!r}: ids are whole numbers from 0 to {vocab_size - 1}, "
                    "as text.vocab_size says"
                )


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} in config.json is {type(section).__name__}, not an object")
    return section


def _build(cls: type[T], name: str, values: Mapping[str, Any]) -> T:
    """Make a section from the values that it knows; null stands for the default."""
    kinds = {f.name: str(f.type) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {key: value for key, value in values.items() if key in kinds and value is not None}
    for key, value in known.items():
        if "int" in kinds[key] and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ConfigError(f"{name}.{key} is {value!r}: it must be a non-negative integer")
        if "bool" in kinds[key] and not isinstance(value, bool):
            raise ConfigError(f"{name}.{key} is {value!r}: it must be true or false")
    return cls(**known)


def _divides(section: str, small_name: str, small: int, large_name: str, large: int) -> None:
    if small < 1 or large < 1 or large % small:
        raise ConfigError(f"{section}: {small_name} ({small}) must divide {large_name} ({large})")

"""Configuration of a Moondream checkpoint, read from its config.json; every dimension comes from here.

The public Moondream 2 release ships an empty configuration and keeps its dimensions in code: they are the defaults
below. `model_type` names the family, and the family decides rules that no tensor shows (`families.py`).
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from photonlite.errors import ConfigError
from photonlite.models.moondream.families import ALIASES, FAMILIES, RELEASED_VOCAB_SIZE, Family

T = TypeVar("T")


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
        """Key/value heads: as many as heads unless the configuration says otherwise."""
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
        _divides("vision", "enc_patch_size", self.enc_patch_size, "crop_size", self.crop_size)
        _divides("vision", "enc_n_heads", self.enc_n_heads, "enc_dim", self.enc_dim)
        if self.in_channels != 3:
            raise ConfigError(f"vision.in_channels is {self.in_channels}: images are read as RGB, set it to 3")
        if 2 * self.overlap_margin >= self.grid:
            raise ConfigError(
                f"vision.overlap_margin {self.overlap_margin} on both sides leaves nothing of a grid of {self.grid}"
            )

    @property
    def grid(self) -> int:
        """Patches along one side of a crop."""
        return self.crop_size // self.enc_patch_size

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
    """Ids around the argument of a skill; a query with reasoning has another suffix."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    reasoning_suffix: tuple[int, ...] = ()


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
    caption: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    query: Template | None = None
    detect: Template | None = None
    point: Template | None = None
    segment: Template | None = None
    reasoning: bool = True
    spatial_refs: bool = True

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
        """Read a parsed config.json, with dimensions at the top or, as in public releases, under "config".

        Raises:
            ConfigError: An unknown family, a value of the wrong type, or dimensions that contradict each other.
        """
        inner = raw.get("config")
        merged = {**raw, **inner} if isinstance(inner, Mapping) else dict(raw)
        kind = str(merged.get("model_type") or "moondream2")
        family = FAMILIES.get(ALIASES.get(kind, kind))
        if family is None:
            known = ", ".join(sorted(FAMILIES.keys() | ALIASES.keys()))
            raise ConfigError(f"model_type {kind!r} is not a family photonlite knows; it knows {known}")
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
    templates = section.get("templates")
    if templates is None:
        # The templates are ids of the released vocabulary: checkpoints with another one have none.
        templates = family.templates if vocab_size == RELEASED_VOCAB_SIZE else {}
    names = [field.name for field in dataclasses.fields(TokenizerConfig) if field.name.endswith("_id")]
    ids = {name: section[name] for name in names if name in section}
    base = _build(TokenizerConfig, "tokenizer", ids)
    try:
        values: dict[str, Any] = {
            name: Template(tuple(t["prefix"]), tuple(t["suffix"]))
            for name in ("detect", "point", "segment")
            if (t := templates.get(name))
        }
        values["caption"] = {length: tuple(ids) for length, ids in (templates.get("caption") or {}).items()}
        if query := templates.get("query"):
            suffix = tuple(query["suffix"])
            opening = (base.answer_id,) if family.answer_id_before_reasoning else ()
            reasoning = tuple(query.get("reasoning_suffix", (*opening, base.thinking_id)))
            values["query"] = Template(tuple(query["prefix"]), suffix, reasoning)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"tokenizer.templates cannot be read: {error!r}; each skill has lists prefix and suffix"
        ) from error
    for name in ("reasoning", "spatial_refs"):
        values[name] = section.get(name, True)
        if not isinstance(values[name], bool):
            raise ConfigError(f"tokenizer.{name} is {values[name]!r}: it must be true or false")
    tokenizer = dataclasses.replace(base, **values)
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
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {key: value for key, value in values.items() if key in fields and value is not None}
    for key, value in known.items():
        integral = "int" in str(fields[key].type)
        if integral and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ConfigError(f"{name}.{key} is {value!r}: it must be a non-negative integer")
    return cls(**known)


def _divides(section: str, small_name: str, small: int, large_name: str, large: int) -> None:
    if small < 1 or large < 1 or large % small:
        raise ConfigError(f"{section}: {small_name} ({small}) must divide {large_name} ({large})")

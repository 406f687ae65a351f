"""Configuration of a Moondream checkpoint, read from its config.json; every dimension comes from here.

The public releases ship an empty configuration and keep their dimensions in code: they are the defaults below, those of
Moondream 2, and of Moondream 3 where its family says otherwise. `model_type` names the family, which decides rules and
defaults that neither tensors nor released files show.

Public implementations of Moondream 3 disagree in some points. Each is a switch of config.json, whose default is what
the code on the Hub does:

| switch | default | otherwise |
|---|---|---|
| `text.tau_gelu` | "erf": exact GELU in front of the temperatures | "tanh": its approximation |
| `text.tau_positions` | "weights": logarithms of positions in the type of the weights | "float32" |
| `text.max_context` | 4096 | 32768, as the model card says |
| `region.input` | "raw": region heads read hidden states before the last norm | "normed": behind it |
| `region.coord_scale` | "bins": bin k of n is k / n | "last_bin": k / (n - 1) |
| `tokenizer.suppress` | true: reasoning never ends with the end id, an answer has no answer id | false |

Whether the region heads have a layer norm, and whether experts are in FP8, is read from the tensors.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from photonlite.errors import ConfigError
from photonlite.images.crops import CropSpec
from photonlite.models.moondream.families import FAMILIES, Family
from photonlite.models.sections import Section

T = TypeVar("T")

_FEW = ("layers", "heads", "experts", "patch_size")  # ends of the names of small numbers
RELEASED_VOCAB_SIZE = 51200  # rows of the embedding in all public releases


@dataclass(frozen=True)
class MixtureConfig:
    """The experts that replace the MLP of a block, from block `start_layer` on."""

    num_experts: int = 64
    start_layer: int = 4
    experts_per_token: int = 8
    expert_inner_dim: int = 1024
    fp8: bool = False  # whether their weights are e4m3, with a float32 scale for each output row; read from the files

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"text.moe: experts_per_token is {self.experts_per_token} of {self.num_experts} experts, num_experts: "
                "give a number from 1 to that"
            )


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
    tau: bool = False  # whether queries and values have temperatures
    tau_gelu: str = "erf"
    tau_positions: str = "weights"
    moe: MixtureConfig | None = None

    def __post_init__(self) -> None:
        _divides("text", "n_heads", self.n_heads, "dim", self.dim)
        _divides("text", "n_kv_heads", self.kv_heads, "n_heads", self.n_heads)
        _divides("text", "4", 4, "dim / n_heads", self.head_dim)
        Section("text", {"rope_theta": self.rope_theta}).positive("rope_theta", 10_000.0)
        _one_of("text", "tau_gelu", self.tau_gelu, ("erf", "tanh"))
        _one_of("text", "tau_positions", self.tau_positions, ("weights", "float32"))
        if self.tau and self.kv_heads != self.n_heads:
            raise ConfigError(
                f"text.tau is on with n_kv_heads {self.kv_heads} and n_heads {self.n_heads}: they must be equal"
            )

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
    input: str = "raw"
    coord_scale: str = "bins"

    def __post_init__(self) -> None:
        for name in ("coord_feat_dim", "size_feat_dim", "size_out_dim"):
            _divides("region", "2", 2, name, getattr(self, name))
        _one_of("region", "decoder", self.decoder, ("mlp", "linear"))
        _one_of("region", "input", self.input, ("raw", "normed"))
        _one_of("region", "coord_scale", self.coord_scale, ("bins", "last_bin"))

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
    Without `suppress` nothing that the family suppresses is. No token that contains one of `never_in_text` is in an
    answer of plain text or in a caption: a small model that also writes JSON would begin one where none is asked for.
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
    suppress: bool = True
    never_in_text: tuple[str, ...] = ()
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
        values = {**family.text, **_section(merged, "text")}
        if values.get("moe") is not None:  # null stands for a decoder without experts
            values["moe"] = _build(MixtureConfig, "text.moe", _section(values, "moe"))
        text = _build(TextConfig, "text", values)
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
    flags = ("reasoning", "spatial_refs", "suppress")
    plain = {name: value for name, value in section.items() if name.endswith("_id") or name in flags}
    base = _build(TokenizerConfig, "tokenizer", plain)
    thinking = [base.answer_id, base.thinking_id] if family.answer_id_before_reasoning else [base.thinking_id]
    never = section.get("never_in_text", [])
    if not isinstance(never, list) or not all(isinstance(text, str) and text for text in never):
        raise ConfigError("tokenizer.never_in_text is a list of texts that are not empty")
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
    tokenizer = dataclasses.replace(base, never_in_text=tuple(never), **templates)
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
        if "int" in kinds[key]:
            read = Section(name, known)
            read.few(key) if key.endswith(_FEW) else read.whole(key, least=0)
        if "bool" in kinds[key] and not isinstance(value, bool):
            raise ConfigError(f"{name}.{key} is {value!r}: it must be true or false")
    return cls(**known)


def _one_of(section: str, name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{section}.{name} is {value!r}: it is {' or '.join(map(repr, known))}")


def _divides(section: str, small_name: str, small: int, large_name: str, large: int) -> None:
    if small < 1 or large < 1 or large % small:
        raise ConfigError(f"{section}: {small_name} ({small}) must divide {large_name} ({large})")

"""Configuration of a PaliGemma 2 checkpoint, read from its config.json.

Where released files leave an entry out, its default is that of the public code. Soft caps have no safe default beyond
that: checkpoints were released with and without the one of the logits, so null in the file means none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from photonlite.errors import ConfigError
from photonlite.models.precisions import is_foreign
from photonlite.models.sections import Section, object_in, rotary_of, shown

_GELU = "gelu_pytorch_tanh"
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class TextConfig:
    """The text decoder, Gemma 2."""

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
    query_scalar: float  # scores are multiplied by its inverse root
    attention_cap: float | None  # of scores, see `kernels.reference.attention.ScoreRule`
    logit_cap: float | None  # the same of logits
    window: int | None  # positions that sliding layers see
    sliding: tuple[bool, ...]  # for each layer

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"text_config.num_key_value_heads ({self.kv_heads}) must divide num_attention_heads ({self.heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(f"text_config.head_dim is {self.head_dim}: rotary positions need an even number")
        if len(self.sliding) != self.layers:
            raise ConfigError(
                f"text_config.layer_types has {len(self.sliding)} entries for {self.layers} layers: it needs one each"
            )


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower, SigLIP without its pooling head."""

    dim: int
    ff_dim: int
    layers: int
    heads: int
    side: int  # of an image, in pixels
    patch: int  # side of a patch, in pixels
    norm_eps: float

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ConfigError(f"vision_config.num_attention_heads ({self.heads}) must divide hidden_size ({self.dim})")
        if self.side % self.patch:
            raise ConfigError(f"vision_config.image_size ({self.side}) must be a multiple of patch_size ({self.patch})")

    @property
    def grid(self) -> int:
        """Patches along a side of an image; each is one position of the decoder."""
        return self.side // self.patch


@dataclass(frozen=True)
class PaliGemmaConfig:
    """A checkpoint's config.json, validated."""

    text: TextConfig
    vision: VisionConfig
    image_id: int
    bos_id: int
    end_id: int

    def __post_init__(self) -> None:
        ids = {"image_token_index": self.image_id, "bos_token_id": self.bos_id, "eos_token_id": self.end_id}
        for name, index in ids.items():
            if index >= self.text.vocab_size:
                raise ConfigError(f"{name} is {index}, but the vocabulary has {self.text.vocab_size} tokens")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "PaliGemmaConfig":
        """Read a config.json as released or as newer libraries write it; ConfigError if invalid."""
        top = Section("", raw)
        top.must_be("model_type", "paligemma")
        top.must_be("tie_word_embeddings", None, True)
        if is_foreign(raw):
            raise ConfigError("this checkpoint is quantised, which is not supported: use the release in bfloat16")
        section = Section("text_config", object_in(raw, "text_config"))
        if (kind := section.values.get("model_type", "gemma")) == "gemma":
            raise ConfigError(
                "text_config.model_type is 'gemma': the first PaliGemma is not supported, use a checkpoint of "
                "PaliGemma 2 (text_config.model_type 'gemma2')"
            )
        if kind != "gemma2":
            raise ConfigError(f"text_config.model_type is {shown(kind)}: photonlite supports 'gemma2' only")
        text = _text(section)
        vision = Section("vision_config", object_in(raw, "vision_config"))
        for name in ("projection_dim", "hidden_size"):
            if (given := top.whole(name, text.dim)) != text.dim:
                raise ConfigError(f"{name} is {given}, but the decoder's hidden_size is {text.dim}: they must be equal")
        # Released files have these at the top, files of newer libraries in the text's section.
        return cls(
            text,
            _vision(vision),
            image_id=top.whole("image_token_index", raw.get("image_token_id"), least=0),
            bos_id=top.whole("bos_token_id", section.whole("bos_token_id", 2, least=0), least=0),
            end_id=_end(top, _end(section, 1)),
        )


def _end(section: Section, default: int) -> int:
    """Read the end, of a list the first."""
    ends = section.values.get("eos_token_id")
    first = ends[0] if isinstance(ends, list) and ends else ends
    return Section(section.name, {"eos_token_id": first}).whole("eos_token_id", default, least=0)


def _text(section: Section) -> TextConfig:
    for name in ("hidden_activation", "hidden_act"):
        section.must_be(name, None, _GELU)
    section.must_be("attention_bias", None, False)
    section.must_be("use_bidirectional_attention", None, True)
    rotary, theta = rotary_of(section, 10_000.0)
    for name in ("rope_type", "type"):
        rotary.must_be(name, None, "default")
    layers = section.few("num_hidden_layers", 26)
    window = None if section.values.get("sliding_window", 0) is None else section.whole("sliding_window", 4096)
    kinds = section.values.get("layer_types") or [(_SLIDING, _FULL)[layer % 2] for layer in range(layers)]
    if not isinstance(kinds, list | tuple) or not set(kinds) <= {_SLIDING, _FULL}:
        raise ConfigError(f"text_config.layer_types is {shown(kinds)}: it lists {_SLIDING} and {_FULL}")
    return TextConfig(
        dim=section.whole("hidden_size", 2304),
        ff_dim=section.whole("intermediate_size", 9216),
        layers=layers,
        heads=section.few("num_attention_heads", 8),
        kv_heads=section.few("num_key_value_heads", 4),
        head_dim=section.whole("head_dim", 256),
        vocab_size=section.whole("vocab_size"),
        max_context=section.whole("max_position_embeddings", 8192),
        norm_eps=section.positive("rms_norm_eps", 1e-6),
        rope_theta=theta,
        query_scalar=section.positive("query_pre_attn_scalar", 256),
        attention_cap=_cap(section, "attn_logit_softcapping", 50.0),
        logit_cap=_cap(section, "final_logit_softcapping", 30.0),
        window=window,
        sliding=tuple(kind == _SLIDING for kind in kinds),
    )


def _cap(section: Section, name: str, default: float) -> float | None:
    return None if section.values.get(name, default) is None else section.positive(name, default)


def _vision(section: Section) -> VisionConfig:
    section.must_be("model_type", None, "siglip_vision_model")
    section.must_be("hidden_act", None, _GELU)
    section.must_be("num_channels", None, 3)
    section.must_be("vision_use_head", None, False)
    return VisionConfig(
        dim=section.whole("hidden_size"),
        ff_dim=section.whole("intermediate_size"),
        layers=section.few("num_hidden_layers"),
        heads=section.few("num_attention_heads"),
        side=section.whole("image_size", 224),
        patch=section.few("patch_size", 14),
        norm_eps=section.positive("layer_norm_eps", 1e-6),
    )

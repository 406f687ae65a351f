"""Shapes of published models, by the names that `--shape` takes. Benchmarks fill them with random weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["moondream", "qwen", "paligemma"]

CONTEXT = 4096
"""Positions that benchmarks need; published checkpoints of Qwen-VL have 128,000 or 262,144."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes.

    Attributes:
        title: For reports.
        family: Whose configuration it is.
        raw: Its config.json.
        tiny: A rehearsal of the same kind, for machines without a card.
        step_aims: Of a decode step at a context of 1,000, in seconds by streams.
    """

    title: str
    family: Family
    raw: Mapping[str, Any]
    tiny: Mapping[str, Any]
    step_aims: Mapping[int, float] = field(default_factory=dict)


MOONDREAM2: dict[str, Any] = {"model_type": "moondream2"}
MOONDREAM3: dict[str, Any] = {"model_type": "moondream3"}

TINY: dict[str, Any] = MOONDREAM2 | {
    "text": {"dim": 32, "ff_dim": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 2320, "max_context": 256},
    "vision": {"enc_dim": 16, "enc_n_layers": 2, "enc_ff_dim": 32, "enc_n_heads": 2, "proj_out_dim": 32}
    | {"proj_inner_dim": 32, "crop_size": 42, "overlap_margin": 1},
    "region": {"dim": 32, "coord_feat_dim": 8, "coord_out_dim": 64, "size_feat_dim": 8, "size_out_dim": 128}
    | {"inner_dim": 32},
    "tokenizer": {
        "templates": {
            "query": {"prefix": [1, 90, 2], "suffix": [3, 3]},
            "detect": {"prefix": [1, 77, 2], "suffix": [3]},
            "point": {"prefix": [1, 89, 2], "suffix": [3]},
        }
    },
}
"""A rehearsal for machines without a card: the same code paths, as many crops, figures that mean nothing."""

_EXPERTS8: dict[str, Any] = {"text": {"moe": {"fp8": True}}}
_TINY_MOE = {"num_experts": 8, "experts_per_token": 2, "expert_inner_dim": 16, "start_layer": 1}
_TINY_REGION = {"decoder": "linear", "norm": True}


def _tiny_moondream3(*, fp8: bool) -> dict[str, Any]:
    text = TINY["text"] | {"n_layers": 3, "moe": _TINY_MOE | {"fp8": fp8}}
    return TINY | {"model_type": "moondream3", "text": text, "region": TINY["region"] | _TINY_REGION}


def _qwen(
    kind: str,
    text: tuple[int, int, int, int, int],
    *,
    tied: bool,
    vocab: int = 151_936,
    context: int = CONTEXT,
    **vision: Any,
) -> dict[str, Any]:
    """Write the config.json of a Qwen-VL model; `text` are layers, hidden size, heads, key/value heads, MLP."""
    layers, dim, heads, kv_heads, ff = text
    newer = kind == "qwen3_vl"
    rope = {"mrope_section": [24, 20, 20] if newer else [16, 24, 24], "rope_type": "default"}
    return {
        "model_type": kind,
        "tie_word_embeddings": tied,
        "image_token_id": min(151_655, vocab - 1),
        "vision_start_token_id": min(151_652, vocab - 3),
        "vision_end_token_id": min(151_653, vocab - 2),
        "text_config": {
            "num_hidden_layers": layers,
            "hidden_size": dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": ff,
            "head_dim": 128,
            "vocab_size": vocab,
            "max_position_embeddings": context,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5_000_000.0 if newer else 1_000_000.0,
            "rope_scaling": rope | ({"mrope_interleaved": True} if newer else {}),
        },
        "vision_config": {"out_hidden_size": dim} | (_VISION3 if newer else _VISION25) | vision,
    }


_VISION3: dict[str, Any] = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
_VISION3_LARGE: dict[str, Any] = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
_VISION25: dict[str, Any] = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip

_SMALL: dict[str, Any] = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
_FEW: dict[str, Any] = {"tied": True, "vocab": 600, "context": 2048}
_TINY3 = _qwen("qwen3_vl", (2, 256, 4, 2, 96), **_FEW, **_SMALL, deepstack_visual_indexes=[0])
_TINY25 = _qwen("qwen2_5_vl", (2, 256, 4, 1, 96), **_FEW, **_SMALL, fullatt_block_indexes=[1])


def _paligemma(text: tuple[int, int, int, int, int, int], vocab: int, **vision: Any) -> dict[str, Any]:
    """Write the config.json of a PaliGemma 2: layers, hidden size, heads, key/value heads, their size, MLP.

    Its last ids are those of image, BOS and end, behind locations and codes of masks.
    """
    layers, dim, heads, kv_heads, size, ff = text
    return {
        "model_type": "paligemma",
        "image_token_index": vocab - 3,
        "bos_token_id": vocab - 2,
        "eos_token_id": vocab - 1,
        "text_config": {
            "model_type": "gemma2",
            "num_hidden_layers": layers,
            "hidden_size": dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": size,
            "intermediate_size": ff,
            "vocab_size": vocab,
            "max_position_embeddings": 2048,
        },
        "vision_config": {"model_type": "siglip_vision_model"} | vision,
    }


_SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 448,
}  # fmt: skip
_TINY_SIGLIP = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
}  # fmt: skip

SHAPES = {
    "moondream2": Shape("Moondream 2", "moondream", MOONDREAM2, TINY),
    "moondream3": Shape(
        "Moondream 3",
        "moondream",
        MOONDREAM3,
        _tiny_moondream3(fp8=False),
        {1: 1.25e-3, 8: 3.7e-3, 32: 6.3e-3},
    ),
    "moondream3-fp8": Shape(
        "Moondream 3 with experts in FP8",
        "moondream",
        MOONDREAM3 | _EXPERTS8,
        _tiny_moondream3(fp8=True),
        {1: 1.0e-3, 8: 2.35e-3, 32: 4.2e-3},
    ),
    "qwen3-vl-2b": Shape(
        "Qwen3-VL-2B",
        "qwen",
        _qwen("qwen3_vl", (28, 2048, 16, 8, 6144), tied=True),
        _TINY3,
        {1: 1.20e-3, 8: 1.40e-3, 32: 2.05e-3},
    ),
    "qwen3-vl-4b": Shape("Qwen3-VL-4B", "qwen", _qwen("qwen3_vl", (36, 2560, 32, 8, 9728), tied=True), _TINY3),
    "qwen3-vl-8b": Shape(
        "Qwen3-VL-8B",
        "qwen",
        _qwen("qwen3_vl", (36, 4096, 32, 8, 12_288), tied=False, **_VISION3_LARGE),
        _TINY3,
        {1: 4.1e-3, 8: 4.4e-3, 32: 5.4e-3},
    ),
    "qwen2.5-vl-3b": Shape("Qwen2.5-VL-3B", "qwen", _qwen("qwen2_5_vl", (36, 2048, 16, 2, 11_008), tied=True), _TINY25),
    "qwen2.5-vl-7b": Shape(
        "Qwen2.5-VL-7B",
        "qwen",
        _qwen("qwen2_5_vl", (28, 3584, 28, 4, 18_944), tied=False, vocab=152_064),
        _TINY25,
    ),
    "paligemma2-3b": Shape(
        "PaliGemma 2 3B at 448 pixels",
        "paligemma",
        _paligemma((26, 2304, 8, 4, 256, 9216), 257_216, **_SIGLIP),
        _paligemma((2, 32, 2, 1, 16, 64), 1536, **_TINY_SIGLIP),
    ),
}
"""Shapes by name."""

IN_PARTS = [name for name, shape in SHAPES.items() if shape.family != "paligemma"]
"""Names of shapes whose image encoder and decode steps are also timed by themselves."""

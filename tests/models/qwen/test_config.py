from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLTextConfig, Qwen3VLTextConfig

from photonlite.config import EngineConfig
from photonlite.engine import build
from photonlite.errors import CapacityError, ConfigError
from photonlite.models.qwen.checkpoint import DEFAULT_CONTEXT
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.fused.layers import block_weights
from photonlite.models.qwen.fused.prefill import FusedPrefill
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.model import QwenModel
from photonlite.runner.buffers import Buffers, CropBuffers, PagedCache
from photonlite.runner.memory import bytes_of_page, plan_memory
from photonlite.runner.patches import PatchImages
from tests.models.qwen.tiny import settings

IDS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}


def released_2_5(dim: int, layers: int, heads: int, kv: int, ff: int, vocab: int, *, tied: bool) -> dict[str, Any]:
    """Return a config.json as Qwen2.5-VL was released: sizes of the decoder at the top."""
    return IDS | {
        "model_type": "qwen2_5_vl",
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": ff,
        "max_position_embeddings": 128000,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 32768,
        "tie_word_embeddings": tied,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vocab_size": vocab,
        "vision_config": {
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "in_chans": 3,
            "out_hidden_size": dim,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
    }


def released_3(dim: int, layers: int, heads: int, ff: int, *, tied: bool, large: bool) -> dict[str, Any]:
    text = {
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": ff,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": tied,
        "vocab_size": 151936,
    }
    vision = {
        "deepstack_visual_indexes": [8, 16, 24] if large else [5, 11, 17],
        "depth": 27 if large else 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152 if large else 1024,
        "in_channels": 3,
        "intermediate_size": 4304 if large else 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": dim,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return IDS | {
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": tied,
    }


PUBLIC = {
    "Qwen2.5-VL 3B": (released_2_5(2048, 36, 16, 2, 11008, 151936, tied=True), 36_864, 3.75e9),
    "Qwen2.5-VL 7B": (released_2_5(3584, 28, 28, 4, 18944, 152064, tied=False), 57_344, 8.29e9),
    "Qwen2.5-VL 32B": (released_2_5(5120, 64, 40, 8, 27648, 152064, tied=False), 262_144, 33.5e9),
    "Qwen3-VL 2B": (released_3(2048, 28, 16, 6144, tied=True, large=False), 114_688, 2.13e9),
    "Qwen3-VL 4B": (released_3(2560, 36, 32, 9728, tied=True, large=False), 147_456, 4.44e9),
    "Qwen3-VL 8B": (released_3(4096, 36, 32, 12288, tied=False, large=True), 147_456, 8.77e9),
    "Qwen3-VL 32B": (released_3(5120, 64, 64, 25600, tied=False, large=True), 262_144, 33.4e9),
}
"""Configurations, bytes of keys and values a position in bfloat16, and parameters, by name."""

META = torch.device("meta")
PREPROCESSORS = {
    False: {"patch_size": 14, "min_pixels": 3136, "max_pixels": 12845056},
    True: {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
}
"""Of the releases, by whether they are of the newer generation."""
for _preprocessor in PREPROCESSORS.values():
    _preprocessor |= {"merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_sizes_are_built_without_memory(name: str) -> None:
    raw, kv_bytes, parameters = PUBLIC[name]
    config = QwenConfig.from_dict(raw)
    with torch.device("meta"):
        model = QwenModel(config, settings("3" if config.version.newer else "2.5", config))

    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(parameters, rel=0.01)
    assert bytes_of_page(model.shape, torch.bfloat16, 1) == kv_bytes


@pytest.mark.parametrize("name", PUBLIC)
def test_the_memory_of_public_sizes_is_planned_as_it_is_taken(name: str) -> None:
    raw, kv_bytes, _ = PUBLIC[name]
    config = QwenConfig.from_dict(raw)
    config = replace(config, text=replace(config.text, max_context=DEFAULT_CONTEXT))
    images = ImageSettings.from_dict(PREPROCESSORS[config.version.newer], config.vision)
    with META:
        model = QwenModel(config, images).to(torch.bfloat16)
        prompts = FusedPrefill(block_weights(model.text), *torch.empty(2, 1), config.text.heads)
    shape = build._slot_shape(model, EngineConfig(), 64)
    longest = DEFAULT_CONTEXT // 16 + 1  # and the copy of a last page
    plan = plan_memory(model.shape, torch.bfloat16, page_size=16, max_rows=64, kv_cache_bytes=longest * 17 * kv_bytes)
    cache = PagedCache(model.shape, plan.pages, 16, META, torch.bfloat16)
    patches = PatchImages(model.vision, images, max_units=EngineConfig().max_crops, longest=DEFAULT_CONTEXT)
    buffers = Buffers(shape, META, torch.bfloat16, dim=config.text.dim), CropBuffers(patches.input_shape, META)

    assert plan.kv_bytes == cache.keys.nbytes + cache.values.nbytes == plan.pages * 16 * kv_bytes
    assert plan.kv_bytes <= longest * 17 * kv_bytes
    with pytest.raises(CapacityError, match=f"{DEFAULT_CONTEXT} positions need {longest}"):
        plan_memory(model.shape, torch.bfloat16, page_size=16, max_rows=64, kv_cache_bytes=longest * 16 * kv_bytes)
    # A slot has room for the largest image and no more, and takes megabytes beside gigabytes of weights.
    assert patches.input_shape == (images.most_patches, images.patch_bytes)
    assert sum(one.nbytes for some in buffers for one in vars(some).values()) < 64 * 2**20
    assert prompts.activation_bytes(4096) < 2 * 2**30


def test_a_released_and_a_rewritten_configuration_read_the_same() -> None:
    released = PUBLIC["Qwen2.5-VL 7B"][0]
    text = {key: value for key, value in released.items() if key not in (*IDS, "vision_config", "model_type")}
    rope = {"rope_type": "default", "rope_theta": text.pop("rope_theta"), **text.pop("rope_scaling")}
    del rope["type"]
    vision = {key: value for key, value in released["vision_config"].items() if key != "in_chans"} | {"in_channels": 3}
    rewritten = IDS | {
        "model_type": "qwen2_5_vl",
        "text_config": text | {"rope_parameters": rope, "model_type": "qwen2_5_vl_text"},
        "vision_config": vision | {"rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}},
    }

    assert QwenConfig.from_dict(rewritten) == QwenConfig.from_dict(released)


def test_rotary_settings_of_the_older_name_hold_where_a_file_has_both() -> None:
    """Guides tell users to add them, for longer contexts, to a file that newer libraries may have written."""
    raw = PUBLIC["Qwen3-VL 2B"][0]
    newer = {"rope_type": "default", "rope_theta": 7.0, "mrope_section": [30, 17, 17], "mrope_interleaved": True}
    both = raw | {"text_config": raw["text_config"] | {"rope_parameters": newer}}
    assert QwenConfig.from_dict(both) == QwenConfig.from_dict(raw)

    text = {key: value for key, value in both["text_config"].items() if key not in ("rope_theta", "rope_scaling")}
    assert QwenConfig.from_dict(raw | {"text_config": text}).text.rope_theta == 7
    shorter = text | {"rope_scaling": {"mrope_section": [24, 20, 20]}}  # replaces all of the newer ones
    assert QwenConfig.from_dict(raw | {"text_config": shorter}).text.rope_theta == 500_000
    longer = text | {"rope_scaling": {"rope_type": "yarn", "factor": 3.0, "mrope_section": [24, 20, 20]}}
    with pytest.raises(ConfigError, match="rope_type is 'yarn'"):
        QwenConfig.from_dict(raw | {"text_config": longer})


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_theta": 7.0}}, {"rope_theta": 3.0}])
@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"rope_type": "default", "rope_theta": 9.0}])
@pytest.mark.parametrize("name", ["Qwen2.5-VL 3B", "Qwen3-VL 2B"])
def test_rotary_settings_are_read_as_transformers_reads_them(name: str, rope: Any, scaling: Any) -> None:
    raw = PUBLIC[name][0]
    inner = raw.get("text_config", raw)
    text = {key: value for key, value in inner.items() if key not in ("rope_theta", "rope_scaling", "vision_config")}
    text |= rope | ({} if scaling is None else {"rope_scaling": scaling})
    read: Any = Qwen3VLTextConfig if name.startswith("Qwen3") else Qwen2_5_VLTextConfig
    expected = read(**deepcopy(text)).rope_parameters["rope_theta"]
    assert QwenConfig.from_dict({**raw, "text_config": text}).text.rope_theta == expected


def test_generations_differ_where_they_should() -> None:
    older = QwenConfig.from_dict(PUBLIC["Qwen2.5-VL 7B"][0])
    newer = QwenConfig.from_dict(PUBLIC["Qwen3-VL 8B"][0])

    assert (older.text.interleaved, older.text.sections, older.text.rope_theta) == (False, (16, 24, 24), 1e6)
    assert (newer.text.interleaved, newer.text.sections, newer.text.rope_theta) == (True, (24, 20, 20), 5e6)
    assert (older.vision.window, older.vision.full_layers, older.vision.table) == (4, (7, 15, 23, 31), 0)
    assert (newer.vision.window, newer.vision.deepstack, newer.vision.table) == (0, (8, 16, 24), 48)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("model_type",), "qwen9_vl", "model_type 'qwen9_vl'"),
        (("quantization_config",), {"quant_method": "fp8"}, "quantised"),
        (("text_config",), 7, "text_config in config.json is 7"),
        (("vision_config",), None, "vision_config in config.json is missing"),
        (("image_token_id",), None, "image_token_id is missing"),
        (("image_token_id",), 151936, "image_token_id is 151936, but the vocabulary has 151936"),
        (("text_config", "hidden_size"), 0, "text_config.hidden_size is 0"),
        (("text_config", "num_hidden_layers"), "many", "text_config.num_hidden_layers is 'many'"),
        (("text_config", "num_hidden_layers"), 10**9, "a whole number from 1 to 1000"),
        (("text_config", "hidden_size"), 10**30, "a whole number from 1 to 16777216"),
        (("text_config", "vocab_size"), True, "text_config.vocab_size is True"),
        (("text_config", "num_key_value_heads"), 5, r"num_key_value_heads \(5\) must divide"),
        (("text_config", "head_dim"), 127, "heads of 127"),
        (("text_config", "hidden_act"), "gelu", "hidden_act is 'gelu'"),
        (("text_config", "attention_bias"), True, "attention_bias is True"),
        (("text_config", "use_sliding_window"), True, "use_sliding_window is True"),
        (("text_config", "rms_norm_eps"), -1, "rms_norm_eps is -1"),
        (("text_config", "rope_theta"), float("inf"), "rope_theta is inf"),
        (("text_config", "rope_scaling"), {"rope_type": "yarn", "factor": 4}, "rope_type is 'yarn'"),
        (("text_config", "rope_scaling"), [1], r"rope_scaling is \[1\]: it must be an object"),
        (("text_config", "rope_scaling"), {"mrope_section": [24, 20]}, "three whole numbers"),
        (("text_config", "rope_scaling"), {"mrope_section": [24, 20, 21]}, "mrope_section"),
        (("text_config", "rope_scaling"), {"mrope_section": [20, 23, 21]}, "every third of 64"),
        (("text_config", "rope_scaling"), {"mrope_interleaved": False}, "mrope_interleaved is False"),
        (("vision_config", "in_channels"), 4, "in_channels is 4"),
        (("vision_config", "hidden_act"), "silu", "vision_config.hidden_act is 'silu'"),
        (("vision_config", "num_heads"), 7, r"num_heads \(7\)"),
        (("vision_config", "out_hidden_size"), 64, "out_hidden_size is 64"),
        (("vision_config", "num_position_embeddings"), 2305, "must be a square"),
        (("vision_config", "deepstack_visual_indexes"), [5, 99], r"\[5, 99\]"),
        (("vision_config", "deepstack_visual_indexes"), [11, 5], "in order"),
        (("vision_config", "deepstack_visual_indexes"), "5", "must be a list of layers"),
        (("vision_config", "rope_parameters"), {"rope_type": "linear"}, "rope_type is 'linear'"),
    ],
)
def test_what_cannot_be_run_is_refused(where: tuple[str, ...], value: object, message: str) -> None:
    raw = dict(PUBLIC["Qwen3-VL 2B"][0])
    inner = raw
    for name in where[:-1]:
        inner[name] = inner = dict(inner[name])
    inner[where[-1]] = value

    with pytest.raises(ConfigError, match=message):
        QwenConfig.from_dict(raw)


def test_a_fine_tuned_model_is_read_though_its_file_lacks_what_the_public_class_has_by_default() -> None:
    import transformers  # takes seconds, which a collection need not wait for

    raw = PUBLIC["Qwen2.5-VL 7B"][0]
    saved = {"hidden_size": 1280, "in_chans": 3, "model_type": "qwen2_5_vl", "spatial_patch_size": 14}
    shortened = {key: value for key, value in raw.items() if key != "rms_norm_eps"}
    shortened["vision_config"] = saved | {"tokens_per_second": 2, "torch_dtype": "bfloat16"}
    public = transformers.Qwen2_5_VLConfig(**{**shortened, "vision_config": dict(shortened["vision_config"])})

    config = QwenConfig.from_dict(shortened)

    assert config.vision == QwenConfig.from_dict(raw).vision
    assert config == QwenConfig.from_dict(public.to_dict())
    assert config.text.norm_eps == public.text_config.rms_norm_eps


@pytest.mark.parametrize(
    ("name", "value", "message"), [("window_size", 20, "window_size"), ("fullatt_block_indexes", 7, "must be a list")]
)
def test_windows_must_hold_an_embedding_and_full_layers_be_a_list(name: str, value: object, message: str) -> None:
    raw = dict(PUBLIC["Qwen2.5-VL 3B"][0])
    raw["vision_config"] = raw["vision_config"] | {name: value}

    with pytest.raises(ConfigError, match=message):
        QwenConfig.from_dict(raw)

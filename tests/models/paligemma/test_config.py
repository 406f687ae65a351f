from typing import Any

import pytest
import torch

from photonlite.errors import ConfigError
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.model import PaliGemmaModel


def released(
    dim: int, layers: int, heads: int, kv: int, ff: int, head_dim: int, scalar: int, side: int
) -> dict[str, Any]:
    """Return a config.json as PaliGemma 2 was released."""
    return {
        "model_type": "paligemma",
        "bos_token_id": 2,
        "eos_token_id": 1,
        "hidden_size": dim,
        "image_token_index": 257152,
        "pad_token_id": 0,
        "projection_dim": dim,
        "text_config": {
            "model_type": "gemma2",
            "hidden_size": dim,
            "intermediate_size": ff,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv,
            "head_dim": head_dim,
            "query_pre_attn_scalar": scalar,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_act": "gelu_pytorch_tanh",
            "sliding_window": 4096,
            "vocab_size": 257216,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "image_size": side,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }


SMALL = released(2304, 26, 8, 4, 9216, 256, 256, 224)
SIZES = {
    "3b": (SMALL, 256, 106_496),
    "10b": (released(3584, 42, 16, 8, 14336, 256, 256, 448), 1024, 344_064),
    "28b": (released(4608, 46, 32, 16, 36864, 128, 144, 896), 4096, 376_832),
}


def changed(**changes: Any) -> dict[str, Any]:
    """Return the smallest released file with changes, of `text` and `vision` too; Ellipsis takes an entry out."""
    text, vision = (
        SMALL[name] | changes.pop(short, {}) for name, short in (("text_config", "text"), ("vision_config", "vision"))
    )
    raw = SMALL | {"text_config": text, "vision_config": vision} | changes
    for part in (raw, text, vision):
        for name in [name for name, value in part.items() if value is ...]:
            del part[name]
    return raw


@pytest.mark.parametrize("name", SIZES)
def test_released_sizes_give_the_known_shape(name: str) -> None:
    raw, positions, kv_bytes = SIZES[name]
    config = PaliGemmaConfig.from_dict(raw)
    with torch.device("meta"):
        model = PaliGemmaModel(config, 256000)

    shape = model.shape
    assert model.crop_spec.positions == positions
    assert 2 * shape.layers * shape.kv_heads * shape.head_dim * 2 == kv_bytes
    assert shape.prefix_lm
    assert (shape.prefix_length, shape.bos_id) == (None, None)
    assert (config.text.attention_cap, config.text.logit_cap, config.text.rope_theta) == (50, 30, 10_000)
    assert config.text.sliding[:3] == (True, False, True)
    assert (config.image_id, config.bos_id, config.end_id) == (257152, 2, 1)
    assert model.text.blocks[0].rule.window == 4096
    assert model.text.blocks[1].rule.window is None
    assert model.text.blocks[0].rule.scale == config.text.query_scalar**-0.5


def test_caps_and_layers_come_from_the_file() -> None:
    text = {"final_logit_softcapping": None, "attn_logit_softcapping": 20.0, "sliding_window": None}
    kinds = ["full_attention"] * 25 + ["sliding_attention"]

    config = PaliGemmaConfig.from_dict(
        changed(text=text | {"layer_types": kinds, "eos_token_id": [7, 9]}, eos_token_id=...)
    )

    assert (config.text.logit_cap, config.text.attention_cap, config.text.window) == (None, 20.0, None)
    assert config.text.sliding == (False,) * 25 + (True,)
    assert config.end_id == 7


def test_files_of_older_libraries_lack_what_the_public_class_has_by_default() -> None:
    left_out = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    raw = changed(text=dict.fromkeys((*left_out, "head_dim"), ...))
    assert PaliGemmaConfig.from_dict(raw) == PaliGemmaConfig.from_dict(SMALL)


def test_older_rotary_settings_replace_newer_ones_with_their_base() -> None:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    assert (
        PaliGemmaConfig.from_dict(changed(text=rope | {"rope_scaling": {"type": "default"}})).text.rope_theta == 10_000
    )
    other = {"rope_scaling": {"type": "default", "rope_theta": 8.0}}
    assert PaliGemmaConfig.from_dict(changed(text=rope | other)).text.rope_theta == 8


def test_the_end_is_the_first_of_a_list_wherever_it_is() -> None:
    assert PaliGemmaConfig.from_dict(changed(eos_token_id=[7, 9])).end_id == 7


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (changed(eos_token_id=["end"]), "eos_token_id is 'end'"),
        (changed(model_type="gemma3"), "model_type is 'gemma3'"),
        (changed(text={"model_type": "gemma"}), "the first PaliGemma is not supported"),
        (changed(text={"model_type": ...}), "the first PaliGemma is not supported"),
        (changed(text={"model_type": "gemma3"}), "text_config.model_type is 'gemma3'"),
        (changed(text={"num_key_value_heads": 3}), r"num_key_value_heads \(3\) must divide"),
        (changed(text={"head_dim": 7}), "head_dim is 7"),
        (changed(text={"layer_types": ["full_attention"]}), "1 entries for 26 layers"),
        (changed(text={"layer_types": ["strided"]}), "layer_types"),
        (changed(text={"hidden_activation": "relu"}), "hidden_activation is 'relu'"),
        (changed(text={"attention_bias": True}), "attention_bias is True"),
        (changed(text={"rope_parameters": {"rope_type": "yarn"}}), "rope_type is 'yarn'"),
        (changed(text={"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}}), "'linear'"),
        (changed(text={"final_logit_softcapping": -1}), "final_logit_softcapping is -1"),
        (changed(text={"vocab_size": 2}), "the vocabulary has 2 tokens"),
        (changed(vision={"hidden_size": ...}), "hidden_size is missing"),
        (changed(vision={"image_size": 225}), r"image_size \(225\) must be a multiple"),
        (changed(vision={"num_attention_heads": 5}), r"num_attention_heads \(5\) must divide"),
        (changed(vision={"vision_use_head": True}), "vision_use_head is True"),
        (changed(vision_config=None), "vision_config in config.json is missing"),
        (changed(projection_dim=2048), "projection_dim is 2048, but the decoder's hidden_size is 2304"),
        (changed(tie_word_embeddings=False), "tie_word_embeddings is False"),
        (changed(quantization_config={"bits": 4}), "quantised"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PaliGemmaConfig.from_dict(raw)

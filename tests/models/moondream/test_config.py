from typing import Any

import pytest
import torch

from photonlite.errors import ConfigError
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from tests.tiny import tiny_config

SMALL_RELEASE = {
    "text": {"dim": 1024, "ff_dim": 4096, "n_heads": 16},
    "vision": {"enc_dim": 720, "enc_ff_dim": 2690, "enc_n_heads": 10, "proj_out_dim": 1024},
    "region": {"dim": 1024},
}


def parameters(config: MoondreamConfig) -> dict[str, int]:
    with torch.device("meta"):
        model = MoondreamModel(config)
    return {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}


def test_an_empty_configuration_is_moondream_2() -> None:
    counts = parameters(MoondreamConfig.from_dict({"model_type": "moondream1", "config": {}}))

    assert counts == {"vision": 448_649_072, "text": 1_418_270_720, "region": 60_317_312}
    assert sum(counts.values()) == 1_927_237_104


def test_dimensions_are_read_from_the_nested_config_of_releases() -> None:
    flat, nested = MoondreamConfig.from_dict(SMALL_RELEASE), MoondreamConfig.from_dict({"config": SMALL_RELEASE})

    assert flat == nested
    assert sum(parameters(flat).values()) == 631_889_382


def test_moondream_3_has_linear_region_heads_with_a_norm() -> None:
    config = MoondreamConfig.from_dict({"model_type": "moondream3", "text": {"n_layers": 1}})

    assert parameters(config)["region"] == 7_876_224
    assert (config.text.rope_theta, config.text.max_context) == (1_500_000, 4096)
    assert not config.family.any_id_continues


@pytest.mark.parametrize("fp8", [False, True])
def test_an_empty_configuration_of_moondream_3_has_experts_behind_four_blocks(fp8: bool) -> None:
    raw = {"model_type": "moondream3"} | ({"text": {"moe": {"fp8": True}}} if fp8 else {})
    counts = parameters(MoondreamConfig.from_dict(raw))
    scales = 20 * 64 * (2048 + 2048) * fp8

    assert counts["text"] - scales == 8_812_101_632
    assert sum(counts.values()) - scales == 9_268_626_928


def test_a_decoder_may_have_no_experts_or_no_temperatures() -> None:
    raw = {"model_type": "moondream3", "text": {"moe": None, "tau": False}}
    config = MoondreamConfig.from_dict(raw)

    assert config.text.moe is None
    assert parameters(config)["text"] == 1_418_270_720


def test_kv_heads_default_to_heads() -> None:
    assert MoondreamConfig.from_dict(SMALL_RELEASE).text.kv_heads == 16
    assert tiny_config().text.kv_heads == 1


def test_the_prefix_follows_from_the_grid() -> None:
    assert MoondreamConfig.from_dict({}).prefix_length == 730
    assert tiny_config().prefix_length == 26


def test_moondream_2_ends_its_prompts_with_the_answer_id_twice() -> None:
    query = MoondreamConfig.from_dict({}).tokenizer.query

    assert query is not None
    assert (query.prefix, query.suffix, query.reasoning_suffix) == ((1, 15381, 2), (3, 3), (3, 4))


def test_a_reasoning_suffix_that_is_not_given_ends_with_the_thinking_id() -> None:
    templates = {"query": {"prefix": [1, 2], "suffix": [3]}}
    config = MoondreamConfig.from_dict({"tokenizer": {"thinking_id": 11, "templates": templates}})

    assert config.tokenizer.query is not None
    assert config.tokenizer.query.reasoning_suffix == (3, 11)
    assert config.tokenizer.skills == ("query",)


@pytest.mark.parametrize(("family", "suffix", "reasoning"), [("moondream2", [3, 3], (3, 4)), ("moondream3", [3], (4,))])
def test_the_family_says_whether_reasoning_opens_with_the_answer_id(
    family: str, suffix: list[int], reasoning: tuple[int, ...]
) -> None:
    templates = {"query": {"prefix": [1, 2], "suffix": suffix}}
    config = tiny_config(family, text={"n_kv_heads": 3}, tokenizer={"templates": templates})

    assert config.tokenizer.query is not None
    assert config.tokenizer.query.reasoning_suffix == reasoning


def test_released_templates_need_the_released_vocabulary() -> None:
    assert tiny_config("moondream2", tokenizer={"templates": None}).tokenizer.skills == ()
    assert "detect" in MoondreamConfig.from_dict({}).tokenizer.skills


def test_the_family_may_stand_in_either_place() -> None:
    raw = {"model_type": "moondream3", "text": {"n_layers": 1}}

    assert MoondreamConfig.from_dict({"config": raw}) == MoondreamConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"model_type": "llava"}, "'llava' is not a family"),
        ({"text": {"moe": {"num_experts": 4}}}, "experts_per_token is 8 of 4 experts"),
        ({"text": {"moe": 64}}, "moe in config.json is int, not an object"),
        ({"text": {"tau": True, "n_kv_heads": 8}}, "n_kv_heads 8 and n_heads 32: they must be equal"),
        ({"text": {"tau_gelu": "none"}}, "text.tau_gelu is 'none': it is 'erf' or 'tanh'"),
        ({"text": {"tau_positions": 1}}, "text.tau_positions is 1: it is 'weights' or 'float32'"),
        ({"region": {"input": "cooked"}}, "region.input is 'cooked': it is 'raw' or 'normed'"),
        ({"region": {"coord_scale": "1023"}}, "region.coord_scale is '1023': it is 'bins' or 'last_bin'"),
        ({"text": {"n_heads": 3}}, r"n_heads \(3\) must divide dim \(2048\)"),
        ({"text": {"n_kv_heads": 5}}, r"n_kv_heads \(5\) must divide n_heads \(32\)"),
        ({"text": {"dim": 1024}}, "proj_out_dim is 2048 but text.dim is 1024"),
        ({"text": {"n_layers": "24"}}, "text.n_layers is '24'"),
        ({"text": {"max_context": 730}}, "an image takes 730 positions"),
        ({"text": []}, "text in config.json is list"),
        ({"vision": {"crop_size": 380}}, r"crop_size 380 is not a multiple of the patch size 14"),
        ({"vision": {"overlap_margin": 14}}, "leaves no window in a crop of 27 patches"),
        ({"vision": {"in_channels": 1}}, "set it to 3"),
        ({"region": {"decoder": "tree"}}, "'mlp' or 'linear'"),
        ({"region": {"size_out_dim": 2047}}, "size_out_dim"),
        ({"tokenizer": {"templates": {"detect": {"prefix": [1]}}}}, "templates cannot be read"),
        ({"tokenizer": {"coord_id": 51200}}, "coord_id has the id 51200: ids are whole numbers from 0 to 51199"),
        ({"tokenizer": {"templates": {"point": {"prefix": ["1"], "suffix": [3]}}}}, "point has the id '1'"),
        ({"tokenizer": {"templates": {"caption": {"short": [-1]}}}}, "caption has the id -1"),
        ({"text": {"rope_theta": "1e4"}}, "rope_theta is '1e4'"),
        ({"text": {"rope_theta": 0}}, "rope_theta is 0"),
        ({"text": {"rope_theta": float("nan")}}, "rope_theta is nan"),
        ({"text": {"n_layers": 10**9}}, "text.n_layers is 1000000000: it must be a whole number from 1 to 1000"),
        ({"text": {"ff_dim": 10**12}}, "text.ff_dim is 1000000000000: .* from 0 to 16777216"),
    ],
)
def test_an_invalid_configuration_is_refused_with_the_reason(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoondreamConfig.from_dict(raw)


@pytest.mark.parametrize("name", ["reasoning", "spatial_refs", "suppress"])
def test_training_flags_are_booleans(name: str) -> None:
    assert getattr(MoondreamConfig.from_dict({}).tokenizer, name) is True
    assert getattr(MoondreamConfig.from_dict({"tokenizer": {name: False}}).tokenizer, name) is False
    with pytest.raises(ConfigError, match=f"tokenizer.{name}"):
        MoondreamConfig.from_dict({"tokenizer": {name: "no"}})


@pytest.mark.parametrize("never", ["{", [""], [3], {"{": 1}])
def test_what_is_never_in_text_is_a_list_of_texts(never: Any) -> None:
    assert MoondreamConfig.from_dict({"tokenizer": {"never_in_text": ["{", "null"]}}).tokenizer.never_in_text == (
        "{",
        "null",
    )
    with pytest.raises(ConfigError, match="never_in_text is a list of texts"):
        MoondreamConfig.from_dict({"tokenizer": {"never_in_text": never}})


def test_no_key_value_heads_is_an_error_and_not_the_default() -> None:
    assert MoondreamConfig.from_dict({}).text.kv_heads == 32
    with pytest.raises(ConfigError, match="n_kv_heads"):
        MoondreamConfig.from_dict({"text": {"n_kv_heads": 0}})

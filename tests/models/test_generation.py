import json
from pathlib import Path
from typing import Any

import pytest

from photonlite.errors import ConfigError
from photonlite.models.generation import GENERATION_NAME, ends_of, read_generation

PUBLIC: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen3-VL": (
        {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.0},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.0},
    ),
    "Qwen2.5-VL": (
        {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.000001},
        {"temperature": 0.000001, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.05},
    ),
    "greedy": ({"temperature": 0.7, "top_k": 5}, {}),
    "greedy with a penalty": (
        {"do_sample": False, "top_p": 0.1, "repetition_penalty": 1.2},
        {"repetition_penalty": 1.2},
    ),
    "no top_k": ({"do_sample": True, "top_k": 0, "top_p": None}, {"top_k": None}),
}
"""Contents of the file, and settings that they mean."""


def folder(path: Path, **raw: Any) -> Path:
    (path / GENERATION_NAME).write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize("name", PUBLIC)
def test_a_file_gives_the_settings_of_its_makers(tmp_path: Path, name: str) -> None:
    raw, wanted = PUBLIC[name]
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}

    found = read_generation(folder(tmp_path, **raw, transformers_version="5.0"))

    assert found.settings == (neutral | wanted if raw.get("do_sample") else wanted)


def test_what_a_file_leaves_out_means_what_it_does_in_transformers(tmp_path: Path) -> None:
    import transformers  # takes seconds, which a collection need not wait for

    transformers.GenerationConfig(do_sample=True, temperature=0.7, top_k=50).save_pretrained(tmp_path)
    defaults = transformers.GenerationConfig._get_default_generation_params()

    found = read_generation(folder(tmp_path, do_sample=True)).settings

    assert found == {name: defaults[name] for name in found}
    assert len(found) == 4


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    assert read_generation(tmp_path).settings == {}
    assert ends_of(tmp_path, {}) == ()


def test_ends_are_those_of_all_files_each_once(tmp_path: Path) -> None:
    raw = {"eos_token_id": 5, "text_config": {"eos_token_id": [3, 9]}}

    assert ends_of(folder(tmp_path, eos_token_id=[3, 4]), raw) == (3, 4, 5, 9)
    assert ends_of(folder(tmp_path, eos_token_id=None), {"text_config": None}) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", False),
        ("repetition_penalty", 0),
        ("do_sample", "yes"),
        ("eos_token_id", "end"),
        ("eos_token_id", [1, -2]),
        ("eos_token_id", [[1]]),
        ("eos_token_id", True),
    ],
)
def test_what_is_no_value_is_refused_with_file_and_key(tmp_path: Path, key: str, value: Any) -> None:
    raw = {"do_sample": True} | {key: value}
    with pytest.raises(ConfigError, match=rf"{key}.* in .*{GENERATION_NAME}"):
        read_generation(folder(tmp_path, **raw))


def test_a_broken_id_in_config_json_is_refused_by_that_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eos_token_id in .*/config\.json"):
        ends_of(tmp_path, {"text_config": {"eos_token_id": 1.5}})

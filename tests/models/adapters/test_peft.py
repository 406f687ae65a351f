import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from photonlite.errors import AdapterError
from photonlite.models.adapters import files, peft
from photonlite.models.adapters.files import find_adapter, read_adapter
from photonlite.models.adapters.peft import scales_of
from photonlite.models.adapters.terms import AdapterWeights
from photonlite.models.moondream import checkpoint
from photonlite.models.shards import JSON_BYTES
from tests.adapters import random_matrices, save_peft
from tests.models.checkpoints import in_hub_cache
from tests.tiny import tiny_config, tiny_model

MODEL = tiny_model(tiny_config())
SIZES = {"model.text.blocks.0.attn.qkv": (24, 40), "model.text.blocks.1.mlp.fc2": (32, 24)}
MATRICES = random_matrices(SIZES, 4, 0)
QKV, FC2 = SIZES


def read(source: Any, rank: int = 8) -> AdapterWeights:
    return read_adapter(find_adapter(source), MODEL, checkpoint, dtype=torch.float64, rank=rank)


def changed(folder: Path, **config: Any) -> Path:
    return save_peft(folder, MATRICES, **config)


def with_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "adapter_model.safetensors"
    save_file({**load_file(path), **tensors}, path)
    return folder


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"alpha": 8}, (2, 2)),
        ({"alpha": 8, "use_rslora": True}, (4, 4)),
        ({"alpha": 8, "alpha_pattern": {"qkv": 2}}, (0.5, 2)),
        ({"alpha": 8, "alpha_pattern": {"kv": 2, r"blocks\.1\..*": 4}}, (2, 1)),
        ({"alpha": 8, "r": 9, "rank_pattern": {"qkv": 4, "text.blocks.1.mlp.fc2": 4}}, (2, 2)),
    ],
)
def test_the_scale_is_in_b(tmp_path: Path, config: dict[str, Any], scales: tuple[float, float]) -> None:
    weights = read(changed(tmp_path, **config))
    by_layer = {term.place.layer: term for term in weights.terms}
    for name, scale in zip(SIZES, scales, strict=True):
        term = by_layer[name.removeprefix("model.")]
        a, b = MATRICES[name]
        torch.testing.assert_close(term.a, a.double())
        torch.testing.assert_close(term.b, b.double() * scale)
        assert term.place[1:] == (0, SIZES[name][1])


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("use_dora", True),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("use_qalora", True),
        ("use_bdlora", {"x": 1}),
        ("alora_invocation_tokens", [3]),
        ("layer_replication", [[0, 4]]),
        ("target_parameters", ["mlp.fc1.weight"]),
        ("trainable_token_indices", [5]),
        ("arrow_config", {"a": 1}),
        ("fan_in_fan_out", True),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, entry: str, value: object) -> None:
    with pytest.raises(AdapterError, match=f"uses {entry}"):
        read(changed(tmp_path, **{entry: value}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"bias": "all"}, "trains biases"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4': only gaussian"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights 'lora_ga': only gaussian"),
        ({"init_lora_weights": "of_next_year"}, "init_lora_weights 'of_next_year': only gaussian"),
        ({"r": 5}, "says rank 5 for model.text.blocks.0.attn.qkv, but its matrices have rank 4"),
        ({"lora_alpha": None}, "lora_alpha None"),
        ({"lora_alpha": True}, "lora_alpha True"),
        ({"alpha_pattern": {"**": 1}}, "no regular expression"),
        ({"alpha_pattern": {"(?=qkv)": 1}}, "'(?=qkv)', which is no regular expression of linear time"),
        ({"alpha_pattern": {r"(k)\1": 1}}, "look-around, back-references"),
        ({"rank_pattern": {r"((\w{99}){99}){99}": 4}}, "large repeats"),
        ({"rank_pattern": {f"{number}.*": 4 for number in range(1000)}}, "4890 characters of regular expressions"),
        ({"alpha_pattern": ["qkv"]}, "alpha_pattern of type list"),
        ({"alpha_pattern": {"qkv": -1}}, "lora_alpha -1 for"),
        ({"lora_alpha": 10**400}, "lora_alpha 1000"),
    ],
)
def test_configurations_that_say_something_else_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdapterError, match=re.escape(message)):
        read(changed(tmp_path, **config))


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal", "mica"])
def test_adapters_that_left_the_base_weights_as_they_are_are_read(tmp_path: Path, start: object) -> None:
    assert read(changed(tmp_path, init_lora_weights=start)).rank == 4


@pytest.mark.parametrize(
    ("patterns", "rank"),
    [
        ({}, None),
        ({"qkv": 4}, 4),
        ({"kv": 4}, None),
        ({"kv|.*qkv": 4}, 4),
        ({"attn.qkv": 4, "qkv": 5}, 4),
        ({".*qk.": 5, "qkv": 4}, 5),
        ({"qkv": 4, ".*qk.": 5}, 4),
        ({r"^model\.text\..*\.(qkv|proj)": 4}, 4),
        ({r"^text\..*qkv": 4}, None),
        ({"qkv$": 4, "(?:attn[.])?qkv": 5}, 4),
        ({"blocks.0.attn.qkv": 5}, 5),
        ({"blocks.1.attn.qkv": 5}, None),
    ],
)
def test_patterns_match_as_python_would_with_the_expression_of_peft(patterns: dict[str, int], rank: int | None) -> None:
    expected = next((own for pattern, own in patterns.items() if re.match(rf"(.*\.)?({pattern})$", QKV)), None)
    shapes = {QKV: (torch.zeros(rank or 7, 1), torch.zeros(1, rank or 7))}
    assert expected == rank
    assert scales_of(shapes, {"rank_pattern": patterns, "r": 7, "lora_alpha": 1}, "it") == {QKV: 1 / (rank or 7)}


@pytest.mark.parametrize("pattern", [".*.*.*x", "(.*)*(.*)*x", "(a|a)*b", r"([\w.]+)+!"])
def test_a_pattern_of_exponential_time_elsewhere_is_matched_at_once(pattern: str) -> None:
    module = f"{'a.' * 240}qkv"
    sizes = {module: (torch.zeros(1, 1), torch.zeros(1, 1))}
    assert scales_of(sizes, {"alpha_pattern": {pattern: 9}, "lora_alpha": 2}, "it") == {module: 2}


def test_thousands_of_names_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    monkeypatch.setattr(peft, "SchemaValidator", compiled.append)
    names = {f"model.blocks.{number}.qkv": 4 for number in range(20_000)}
    sizes = {name: (torch.zeros(4, 1), torch.zeros(1, 4)) for name in list(names)[-500:]}
    assert set(scales_of(sizes, {"rank_pattern": names, "lora_alpha": 2}, "it").values()) == {0.5}
    assert not compiled


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({"x" * 501: (1, 1)}, b"", "a name of 501 characters: the limit is 500"),
        ({f"{n:0490}": (0, 0) for n in range(31_000)}, b"", "a header of .* the limit is"),
        ({}, b" " * (JSON_BYTES + 1), f"more than {JSON_BYTES} bytes"),
    ],
)
def test_what_strangers_may_send_is_bounded(
    tmp_path: Path, tensors: dict[str, tuple[int, int]], config: bytes, message: str
) -> None:
    changed(tmp_path)
    write_zeros(tmp_path / "adapter_model.safetensors", tensors or {"x": (1, 1)})
    if config:
        (tmp_path / "adapter_config.json").write_bytes(config)
    with pytest.raises(AdapterError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("shape", [(2**17, 24), (0, 24), (4, 0), (0, 2**30, 2**30, 2**30)])
def test_shapes_are_checked_before_any_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    changed(tmp_path, r=shape[0])
    names = [f"base_model.model.{QKV}.lora_{half}.weight" for half in "AB"]
    write_zeros(tmp_path / "adapter_model.safetensors", {names[0]: shape, names[1]: (40, shape[0])})
    monkeypatch.setattr(files, "load_tensors", lambda data: pytest.fail("data were read"))
    with pytest.raises(AdapterError, match=r"rank|made for another model|give a number above 0|matrices"):
        read(tmp_path)


def write_zeros(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of zeros, sparse on disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("base_model.model.lm_head.lora_A.weight", (4, 24), "an adapter of the head"),
        ("base_model.model.model.text.wte.lora_embedding_A", (4, 24), "an adapter of embeddings"),
        (f"base_model.model.{QKV}.lora_magnitude_vector", (40,), "a DoRA adapter"),
        ("base_model.model.model.modules_to_save.weight", (4, 4), "a whole module"),
        ("base_model.model.model.vision.blocks.0.attn.qkv.weight", (4, 4), "belongs to no LoRA"),
        ("base_model.model.model.text.blocks.0.attn.proj.lora_A.weight", (4, 24), "without the other half"),
        (f"base_model.model.{QKV}.lora_A.weight", (5, 24), r"matrices of shapes \[5, 24\] and \[40, 4\]"),
        (f"base_model.model.{QKV}.lora_A.weight", (4, 24, 1), "a linear layer"),
        (f"base_model.model.{QKV}.lora_A.weight", (4, 30), "was made for another model.*24 inputs and 40 outputs"),
    ],
)
def test_tensors_that_nothing_would_use_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    folder = with_tensors(changed(tmp_path), {name: torch.zeros(shape)})
    with pytest.raises(AdapterError, match=message):
        read(folder)


@pytest.mark.parametrize("layer", ["model.text.blocks.7.attn.qkv", "model.region.coord_decoder", "transformer.h.0"])
def test_layers_that_the_model_does_not_have_are_refused(tmp_path: Path, layer: str) -> None:
    folder = save_peft(tmp_path, random_matrices({layer: (24, 24)}, 2, 0))
    with pytest.raises(AdapterError, match=f"adapts {layer}, which is no linear layer"):
        read(folder)


def test_two_names_of_one_layer_are_refused(tmp_path: Path) -> None:
    sizes = {QKV: SIZES[QKV], "text_model.transformer.h.0.mixer.Wqkv": SIZES[QKV]}
    with pytest.raises(AdapterError, match=r"two adapters for text.blocks.0.attn.qkv"):
        read(save_peft(tmp_path, random_matrices(sizes, 2, 0)))


def test_ranks_over_the_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"rank 4 at .*, over the limit of 3: raise .*'adapter_rank'"):
        read(changed(tmp_path), rank=3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    name = f"base_model.model.{FC2}.lora_B.weight"
    matrix = torch.zeros(24, 4)
    matrix[17, 2] = value
    with pytest.raises(AdapterError, match="not finite"):
        read(with_tensors(changed(tmp_path), {name: matrix}))


def test_integers_are_refused(tmp_path: Path) -> None:
    name = f"base_model.model.{FC2}.lora_B.weight"
    with pytest.raises(AdapterError, match="of type I8"):
        read(with_tensors(changed(tmp_path), {name: torch.zeros(24, 4, dtype=torch.int8)}))


def test_an_adapter_without_tensors_is_refused(tmp_path: Path) -> None:
    changed(tmp_path)
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match="holds no tensors"):
        read(tmp_path)


def test_the_key_is_of_the_content(tmp_path: Path) -> None:
    first, same, other = (read(changed(tmp_path / name, alpha=alpha)) for name, alpha in (("a", 8), ("b", 8), ("c", 4)))
    assert first.key == same.key != other.key
    assert (first.rank, first.nbytes) == (4, 8 * sum(one.numel() for pair in MATRICES.values() for one in pair))


def test_a_file_stands_for_its_folder(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    assert read(folder / "adapter_model.safetensors").key == read(str(folder)).key


def test_a_hub_id_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = changed(tmp_path / "files")
    in_hub_cache(tmp_path / "hub", "someone/shelf", folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert read("someone/shelf").key == read(folder).key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no adapter_config.json"),
        ({"adapter_config.json": b"{}"}, "has no adapter_model.safetensors"),
        ({"adapter_config.json": b"{}", "adapter_model.bin": b""}, "is a pickle"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, "not a whole safetensors file"),
        ({"adapter_config.json": b"[", "adapter_model.safetensors": None}, "cannot be read as JSON"),
    ],
)
def test_folders_that_hold_no_adapter_are_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    changed(tmp_path)
    kept = (tmp_path / "adapter_model.safetensors").read_bytes()
    for path in tmp_path.iterdir():
        path.unlink()
    for name, own in content.items():
        (tmp_path / name).write_bytes(kept if own is None else own)
    with pytest.raises(AdapterError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"), [("", "names no adapter"), (3, "names no adapter"), ("nowhere", "there is no adapter")]
)
def test_names_that_lead_nowhere_are_refused(source: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        find_adapter(source)


@pytest.mark.parametrize(("name", "message"), [("final.pt", "is a pickle"), ("a.txt", "is no .safetensors file")])
def test_files_that_are_no_safetensors_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text(json.dumps({}))
    with pytest.raises(AdapterError, match=message):
        find_adapter(tmp_path / name)

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from photonlite.errors import CheckpointError
from photonlite.models.families import LoadOptions
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.weights import load_model
from photonlite.models.shards import find_weights
from tests.models.qwen.tiny import reference_model, save, settings

NEWER = ("model.visual.", "model.language_model.")
RELEASED = ("visual.", "model.")


@pytest.fixture(scope="module", params=["2.5", "2.5-tied", "3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model(request.param), tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model("3"), tmp_path_factory.mktemp("third"), "3")


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def load(folder: Path, files: list[Path], **changes: Any) -> QwenModel:
    raw = json.loads((folder / "config.json").read_text()) | changes
    config = QwenConfig.from_dict(raw)
    images = settings("3" if config.version.newer else "2.5", config)
    return load_model(files, config, images, LoadOptions("cpu", torch.float32))


def written(path: Path, values: dict[str, Tensor]) -> list[Path]:
    save_file({name: value.contiguous() for name, value in values.items()}, path)
    return [path]


def renamed(values: dict[str, Tensor], old: tuple[str, str], new: tuple[str, str]) -> dict[str, Tensor]:
    def name(key: str) -> str:
        pair = next(((a, b) for a, b in zip(old, new, strict=True) if key.startswith(a)), ("", ""))
        return pair[1] + key.removeprefix(pair[0])

    return {name(key): value for key, value in values.items()}


def test_both_layouts_of_names_give_the_same_model(checkpoint: Path, tmp_path: Path) -> None:
    values = tensors(checkpoint)
    newer = any(key.startswith(NEWER) for key in values)
    other = renamed(values, NEWER, RELEASED) if newer else renamed(values, RELEASED, NEWER)
    assert set(other).isdisjoint(key for key in values if key != "lm_head.weight")

    one = load(checkpoint, [checkpoint / "model.safetensors"]).state_dict()
    two = load(checkpoint, written(tmp_path / "other.safetensors", other)).state_dict()

    assert all(torch.equal(one[name], two[name]) for name in one)


def test_shards_give_the_same_model(checkpoint: Path, tmp_path: Path) -> None:
    values = tensors(checkpoint)
    shards: list[dict[str, Tensor]] = [{}, {}, {}]
    for number, (key, value) in enumerate(values.items()):
        shards[number % 3][key] = value  # q, k and v of a layer are in different shards
    for number, shard in enumerate(shards):
        written(tmp_path / f"part-{number}.safetensors", shard)
    index = {key: f"part-{number % 3}.safetensors" for number, key in enumerate(values)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    one = load(checkpoint, [checkpoint / "model.safetensors"]).state_dict()
    two = load(checkpoint, list(find_weights(tmp_path))).state_dict()

    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_head_that_is_stored_is_the_embedding_where_config_json_ties_them(tmp_path: Path) -> None:
    folder = save(reference_model("2.5-tied"), tmp_path, "2.5-tied")
    values = tensors(folder)
    values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
    model = load(folder, written(tmp_path / "same.safetensors", values))
    assert "text.head.weight" not in model.state_dict()

    values["lm_head.weight"][-1, -1] += 1
    other = written(tmp_path / "other.safetensors", values)
    with pytest.raises(CheckpointError, match=r"lm_head.weight in .* set tie_word_embeddings to false"):
        load(folder, other)
    head = load(folder, other, tie_word_embeddings=False).state_dict()["text.head.weight"]
    assert torch.equal(head, values["lm_head.weight"])


@pytest.mark.parametrize("case", ["2.5", "3"])
def test_patches_in_the_order_of_mlx_are_refused(tmp_path: Path, case: str) -> None:
    folder = save(reference_model(case), tmp_path, case)
    values = tensors(folder)
    name = next(name for name in values if name.endswith("patch_embed.proj.weight"))
    values[name] = values[name].permute(0, 2, 3, 4, 1)

    with pytest.raises(CheckpointError, match=r"patch_embed.proj.weight is \[32, 2, 1\d, 1\d, 3\] where \[32, 3, 2, "):
        load(folder, written(tmp_path / "mlx.safetensors", values))


def test_the_dtype_is_the_one_that_was_asked_for(third: Path) -> None:
    config = QwenConfig.from_dict(json.loads((third / "config.json").read_text()))
    model = load_model([third / "model.safetensors"], config, settings("3", config), LoadOptions("cpu", torch.bfloat16))

    assert {value.dtype for value in model.state_dict().values()} == {torch.bfloat16}


def test_mixed_layouts_are_refused(third: Path, tmp_path: Path) -> None:
    values = tensors(third)
    mixed = {key.replace("model.visual.", "visual."): value for key, value in values.items()}

    with pytest.raises(CheckpointError, match=r"mix two layouts.*model\.language_model\..*visual\."):
        load(third, written(tmp_path / "mixed.safetensors", mixed))


def test_a_missing_part_is_named(third: Path, tmp_path: Path) -> None:
    values = tensors(third)
    del values["model.language_model.layers.2.self_attn.k_proj.weight"]

    with pytest.raises(CheckpointError, match=r"1 missing: text\.blocks\.2\.attn\.qkv\.weight \(k\)"):
        load(third, written(tmp_path / "less.safetensors", values))


def test_a_checkpoint_without_any_known_name_is_refused(third: Path, tmp_path: Path) -> None:
    values = {f"transformer.{key}": value for key, value in tensors(third).items()}

    with pytest.raises(CheckpointError, match=r"missing.*unexpected"):
        load(third, written(tmp_path / "other.safetensors", values))


def test_an_unexpected_tensor_is_named(third: Path, tmp_path: Path) -> None:
    values = tensors(third) | {"model.visual.blocks.0.attn.extra": torch.zeros(3)}

    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.visual\.blocks\.0\.attn\.extra"):
        load(third, written(tmp_path / "more.safetensors", values))


@pytest.mark.parametrize(
    "key", ["model.language_model.layers.0.self_attn.v_proj.weight", "model.visual.patch_embed.proj.weight"]
)
def test_a_wrong_shape_is_named(third: Path, tmp_path: Path, key: str) -> None:
    values = tensors(third)
    values[key] = values[key][:-1]

    with pytest.raises(CheckpointError, match=rf"1 wrongly shaped: {key} is \["):
        load(third, written(tmp_path / "short.safetensors", values))


def test_the_other_generation_is_refused(third: Path) -> None:
    older = save(reference_model("2.5"), third.parent / "older", "2.5")

    with pytest.raises(CheckpointError, match="missing"):
        load(third, [older / "model.safetensors"])


def test_quantised_data_are_refused(third: Path, tmp_path: Path) -> None:
    values = tensors(third)
    key = "model.language_model.layers.0.mlp.up_proj.weight"
    values[key] = values[key].to(torch.float8_e4m3fn)

    with pytest.raises(CheckpointError, match=rf"quantised \({key}"):
        load(third, written(tmp_path / "fp8.safetensors", values))

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from photonlite.errors import CheckpointError
from photonlite.models.families import LoadOptions
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.model import PaliGemmaModel
from photonlite.models.paligemma.weights import load_model
from tests.models.paligemma.tiny import FIRST_LOCATION, reference_model, save

NEWER = {
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
RELEASED = {"vision_tower.": "vision_tower.vision_model."}
NORM = "language_model.model.layers.0.input_layernorm.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model("capped"), tmp_path_factory.mktemp("checkpoint"))


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def load(folder: Path, path: Path, values: dict[str, Tensor]) -> PaliGemmaModel:
    save_file({name: value.contiguous() for name, value in values.items()}, path)
    config = PaliGemmaConfig.from_dict(json.loads((folder / "config.json").read_text()))
    return load_model([path], config, FIRST_LOCATION, LoadOptions("cpu", torch.float32))


@pytest.mark.parametrize("changes", [NEWER, RELEASED], ids=["newer", "released"])
def test_both_layouts_of_names_give_the_same_model(checkpoint: Path, tmp_path: Path, changes: dict[str, str]) -> None:
    values = tensors(checkpoint)
    other = {}
    for name, value in values.items():
        old = next((old for old in changes if name.startswith(old)), "")
        other[changes.get(old, "") + name.removeprefix(old)] = value
    other["lm_head.weight"] = values["language_model.model.embed_tokens.weight"].clone()  # stored a second time
    other["model.language_model.rotary_emb.inv_freq"] = torch.ones(4)
    assert set(other) != set(values)

    one = load(checkpoint, tmp_path / "one.safetensors", values).state_dict()
    two = load(checkpoint, tmp_path / "two.safetensors", other).state_dict()

    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({NORM: None}, "1 missing: text.blocks.0.norm_in.weight"),
        ({"vision_tower.head.probe": torch.ones(3)}, "1 unexpected: vision_tower.head.probe"),
        ({NORM: torch.ones(3)}, r"layernorm.weight is \[3\] where \[24\] is expected"),
        ({NORM: torch.ones(24, dtype=torch.int8)}, "is quantised"),
        ({"model.language_model.layers.0.input_layernorm.weight": torch.ones(24)}, "are the same parameter"),
    ],
)
def test_what_does_not_fit_is_named(
    checkpoint: Path, tmp_path: Path, change: dict[str, Tensor | None], words: str
) -> None:
    values = tensors(checkpoint) | change

    with pytest.raises(CheckpointError, match=words):
        load(checkpoint, tmp_path / "bad.safetensors", {name: one for name, one in values.items() if one is not None})


def test_patches_in_the_order_of_mlx_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    values = tensors(checkpoint)
    name = next(name for name in values if name.endswith("patch_embedding.weight"))
    values[name] = values[name].permute(0, 2, 3, 1)

    with pytest.raises(CheckpointError, match=r"patch_embedding.weight is \[16, 14, 14, 3\] where \[16, 3, 14, 14\]"):
        load(checkpoint, tmp_path / "mlx.safetensors", values)


def test_a_head_that_is_not_the_embedding_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    values = tensors(checkpoint)
    values["language_model.lm_head.weight"] = values["language_model.model.embed_tokens.weight"] * 2

    with pytest.raises(CheckpointError, match="is not equal to language_model"):
        load(checkpoint, tmp_path / "head.safetensors", values)

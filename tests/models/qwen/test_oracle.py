"""transformers' own implementation reads the very files that a model was loaded from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from photonlite.errors import CapacityError, CheckpointError
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.oracle import QwenOracle
from photonlite.models.transformers_copy import link_files
from photonlite.request import IMAGE, Token
from photonlite.verification.checks import built_in_pictures
from tests.models.qwen.tiny import IDS, reference_model, save

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model("3-tied"), tmp_path_factory.mktemp("qwen"), "3-tied")


@pytest.fixture(scope="module")
def model(folder: Path) -> QwenModel:
    loaded = load_checkpoint(folder, device=CPU, dtype=torch.float32, max_context=800).model
    assert isinstance(loaded, QwenModel)
    return loaded


def test_logits_of_a_file_of_any_name_are_equal(folder: Path, model: QwenModel) -> None:
    file = (folder / "model.safetensors").rename(folder / "finetune.safetensors")
    try:
        oracle = QwenOracle((file,), model)
    finally:
        file.rename(folder / "model.safetensors")
    prompt = (Token(1), IMAGE, Token(2))
    answer = [3, 4, IDS["image_token_id"], 5]  # behind an id that stands for an image nothing is compared

    own, theirs = oracle.logits(prompt, built_in_pictures()[2:], answer)

    assert own.shape == theirs.shape == (3, 320)
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4)


def test_a_file_without_one_of_the_tensors_is_refused(folder: Path, model: QwenModel, tmp_path: Path) -> None:
    link_files((folder / "model.safetensors",), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("mlp.down_proj.weight"))
    del tensors[name]
    save_file(tensors, tmp_path / "other.safetensors", metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=r"finds no .*mlp\.down_proj\.weight in .*other\.safetensors"):
        QwenOracle((tmp_path / "other.safetensors",), model)


def test_a_file_that_is_none_is_refused(folder: Path, model: QwenModel, tmp_path: Path) -> None:
    link_files((folder / "model.safetensors",), tmp_path)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")

    with pytest.raises(CheckpointError, match=r"transformers cannot load .*other\.safetensors"):
        QwenOracle((tmp_path / "other.safetensors",), model)


def test_a_device_without_room_for_a_second_copy_is_named(
    folder: Path, model: QwenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def to(self: object, device: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("transformers.Qwen3VLForConditionalGeneration.to", to)

    with pytest.raises(CapacityError, match=r"no room .* device='cpu'"):
        QwenOracle((folder / "model.safetensors",), model)


def test_shards_are_linked_with_their_index(tmp_path: Path) -> None:
    home, linked, single = (tmp_path / name for name in ("home", "linked", "single"))
    for path in (home, linked, single):
        path.mkdir()
    small = ("config.json", "chat_template.jinja", "model.safetensors.index.json")
    for name in (*small, "a.safetensors", "b.safetensors"):
        (home / name).write_text(name)

    link_files((home / "a.safetensors", home / "b.safetensors"), linked)
    link_files((home / "b.safetensors",), single)

    assert {path.name for path in linked.iterdir()} == {path.name for path in home.iterdir()}
    assert {path.name for path in single.iterdir()} == {"config.json", "chat_template.jinja", "model.safetensors"}
    assert (single / "model.safetensors").read_text() == "b.safetensors"

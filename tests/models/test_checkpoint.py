import json
import shutil
from pathlib import Path

import pytest
import torch

from photonlite.errors import CheckpointError, PromptError
from photonlite.models.checkpoint import load_checkpoint
from tests.tiny import CPU, GOLDEN


def test_a_folder_becomes_a_model_with_its_prompts() -> None:
    loaded = load_checkpoint(GOLDEN, device=CPU, dtype=torch.bfloat16)

    assert loaded.name == str(GOLDEN)
    assert loaded.model.shape.prefix_length == loaded.prompts.prefix_length == 730
    assert loaded.model.embed(torch.tensor([1])).dtype == torch.bfloat16
    assert loaded.prompts.decode([74, 75]) == "ab"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, tmp_path)
    return tmp_path


def test_text_never_encodes_to_control_ids(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["tokenizer"]["coord_id"] = 74  # the letter a
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(PromptError, match="keeps for control"):
        load_checkpoint(folder, device=CPU, dtype=torch.float32).prompts.detect("a")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text"]["vocab_size"] = 200
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match="266 tokens but the model has 200 rows"):
        load_checkpoint(folder, device=CPU, dtype=torch.float32)

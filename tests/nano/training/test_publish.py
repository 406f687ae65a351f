import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.nano.training import publish


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    bias = torch.arange(8, dtype=torch.float16)
    save_file({"model.text.lm_head.bias": bias, "other": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "photonlite_nano"}')
    return folder


def test_weights_config_and_tokenizer_are_copied(run, tmp_path):
    size = publish.publish(run, tmp_path / "out")

    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["model.text.lm_head.bias"], torch.arange(8, dtype=torch.float16))
    assert torch.equal(written["other"], torch.ones(3))
    assert size == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "photonlite_nano"}
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_weights_over_the_limit_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "LIMIT", 10)

    with pytest.raises(ValueError, match="limit of 10"):
        publish.publish(run, tmp_path / "out")

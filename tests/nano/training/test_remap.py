"""Weights for a tokenizer that has changed: rows move with their tokens, new ones begin as the mean of their pieces."""

import json
import sys

import torch
from safetensors.torch import load_file, save_file

from bench.nano.questions.tokenizer import TOKENIZER_JSON, VOCABULARY_SIZE, load_answer_tokenizer
from bench.nano.training import remap


def older(path):
    """The tokenizer of before, with two of its last tokens the other way round and one missing."""
    content = json.loads(TOKENIZER_JSON.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["json_older"] = vocabulary.pop('":"')
    vocabulary["name"], vocabulary["count"] = vocabulary["count"], vocabulary["name"]
    path.write_text(json.dumps(content), encoding="utf-8")


def test_rows_follow_their_tokens(tmp_path, monkeypatch):
    older(tmp_path / "tokenizer.json")
    weights = {
        "model.text.wte": torch.randn(VOCABULARY_SIZE, 3).half(),
        "model.text.lm_head.bias": torch.randn(VOCABULARY_SIZE).half(),
        "model.text.other": torch.randn(4, 3).half(),
    }
    save_file(weights, tmp_path / "model.safetensors")
    monkeypatch.setattr(sys, "argv", ["remap", str(tmp_path / "tokenizer.json"), str(tmp_path / "model.safetensors")])
    remap.main()
    after, new = load_file(tmp_path / "model.safetensors"), load_answer_tokenizer()
    name, count, run = (new.token_to_id(token) for token in ("name", "count", '":"'))
    kept = [index for index in range(VOCABULARY_SIZE) if index not in (name, count, run)]
    assert torch.equal(after["model.text.other"], weights["model.text.other"])
    for key in ("model.text.wte", "model.text.lm_head.bias"):
        assert torch.equal(after[key][kept], weights[key][kept])
        assert torch.equal(after[key][name], weights[key][count])
        assert torch.equal(after[key][count], weights[key][name])
        pieces = load_answer_tokenizer(tmp_path / "tokenizer.json").encode('":"').ids
        assert torch.equal(after[key][run], weights[key][pieces].float().mean(0).half())
        assert len(pieces) > 1

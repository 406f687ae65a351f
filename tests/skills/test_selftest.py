"""A checkpoint that computes NaN is found before the first request: one part of it at a time."""

import threading
from pathlib import Path

import pytest
import torch

import photonlite
from photonlite.errors import NumericalError
from photonlite.request import Token
from photonlite.skills import selftest
from tests.models.checkpoints import golden_tensors, make_folder
from tests.tiny import tiny_config, tiny_prompts

PARTS = (
    "vision.blocks.1.mlp.fc2.weight",
    "text.blocks.1.attn.qkv.weight",
    "text.lm_head.weight",
    "region.coord_decoder.fc2.weight",
    "region.size_decoder.fc2.weight",
    "region.coord_encoder.weight",
    "region.size_encoder.weight",
)


def spoiled(folder: Path, part: str) -> Path:
    tensors = golden_tensors()
    tensors[f"model.{part}"].view(-1)[-1] = torch.nan
    return make_folder(folder, tensors)


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_nan_in_any_part_is_found_at_load(tmp_path: Path, part: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(NumericalError, match=r"the self-test of '\w+' has failed: .* not finite"):
        photonlite.load(spoiled(tmp_path / "model", part), device="cpu", check=True)

    assert set(threading.enumerate()) <= before


def test_a_good_checkpoint_passes_and_a_bad_one_loads_without_the_check(tmp_path: Path) -> None:
    with photonlite.load(make_folder(tmp_path / "good"), device="cpu", check=True) as model:
        counted = model.metrics()["counters"]
        assert counted["requests_finished"] == len(model.skills) > 3
        assert counted["requests_failed"] == 0
    with photonlite.load(spoiled(tmp_path / "bad", PARTS[0]), device="cpu") as model:
        assert model.metrics()["counters"]["requests_submitted"] == 0


def test_each_skill_asks_every_head_and_ends() -> None:
    prompts = tiny_prompts(tiny_config())
    ids = prompts.vocabulary
    requests = selftest.build(prompts)
    assert set(requests) == set(prompts.skills)
    for request in requests.values():
        heads = []
        while request.grammar.finish_reason is None:
            allowed, ahead = request.grammar.allowed, request.grammar.ahead
            heads.append((allowed.coordinate, allowed.size))
            request.grammar.accept(Token(allowed.forced or 30))
            assert ahead is None or ahead is request.grammar.allowed
        assert heads == [(None, None), *[(ids.coordinate, None)] * 2, (None, ids.size), (None, None)]
        assert len(heads) == request.budget
        with pytest.raises(ValueError, match="after the end"):
            request.grammar.accept(Token(30))

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import save_file

from bench.nano.questions.layout import ANSWER, BOS, COORD, SIZE
from bench.nano.questions.tokenizer import CONTROL, load_tokenizer
from bench.nano.training.config import config_dict, initialise
from photonlite.models.loading import shipped_checkpoint
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from tests.nano.small import maker, shipped_prompts

CONFIG = MoondreamConfig.from_dict(config_dict(load_tokenizer()))


@pytest.fixture(scope="module")
def model():
    """Initialised where before was nothing that a network could run with."""
    made = MoondreamModel(CONFIG)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(math.nan)
        initialise(made)
    return made.requires_grad_(False)


def test_the_checkpoint_is_small_enough_to_ship(model, tmp_path):
    assert 6e6 < sum(parameter.numel() for parameter in model.parameters()) < 9.1e6
    path = tmp_path / "model.safetensors"
    save_file({f"model.{name}": value.half() for name, value in model.state_dict().items()}, path)
    assert path.stat().st_size < 18_100_000


def test_every_weight_has_a_start_that_half_precision_holds(model):
    for name, parameter in model.named_parameters():
        assert bool(parameter.half().isfinite().all()), name
        if parameter.ndim > 1:
            assert float(parameter.std()) > 1e-4, name


def test_branches_that_add_to_the_residual_start_smaller(model):
    for blocks in (model.vision.blocks, model.text.blocks):
        damped = 0.02 / math.sqrt(2 * len(blocks))
        for block in blocks:
            assert float(block.attn.proj.weight.std()) == pytest.approx(damped, rel=0.05)
            assert float(block.mlp.fc2.weight.std()) == pytest.approx(damped, rel=0.05)
            assert float(block.mlp.fc1.weight.std()) == pytest.approx(0.02, rel=0.05)


def test_frequencies_tell_neighbouring_bins_apart_and_halves_of_the_image(model):
    for features in (model.region.coord_features, model.region.size_features):
        assert float(features.abs().min()) == pytest.approx(0.5)
        assert float(features.abs().max()) == pytest.approx(64)
        assert {-1.0, 1.0} == set(features.sign().unique().tolist())


def test_ids_mean_the_same_in_config_tokenizer_and_training():
    ids = dataclasses.asdict(CONFIG.tokenizer)
    names = {"bos_id": "endoftext", "eos_id": "endoftext", "answer_id": "answer", "thinking_id": "thinking"}
    names |= {"coord_id": "coord", "size_id": "size", "start_ground_points_id": "ground_points"}
    names |= {"end_ground_id": "end_ground"}
    for name, token in names.items():
        assert CONTROL[ids[name]] == f"<|{token}|>"
    vocabulary = shipped_prompts().vocabulary
    assert (vocabulary.end, vocabulary.answer, vocabulary.coordinate, vocabulary.size) == (BOS, ANSWER, COORD, SIZE)
    assert not vocabulary.any_id_continues


def test_the_shipped_checkpoint_is_the_one_that_this_code_trains():
    shipped = json.loads((shipped_checkpoint() / "config.json").read_text(encoding="utf-8"))
    assert shipped == config_dict(load_tokenizer())


def test_the_context_holds_an_image_and_any_question():
    assert CONFIG.prefix_length + max(maker().lengths) <= CONFIG.text.max_context


def test_skills_are_those_that_training_teaches():
    assert CONFIG.tokenizer.skills == ("caption", "query", "detect", "point", "segment")
    assert set(CONFIG.tokenizer.caption) == {"short", "normal", "long"}
    assert CONFIG.tokenizer.reasoning
    assert CONFIG.tokenizer.spatial_refs


def test_degrading_can_work_at_this_size():
    assert CONFIG.vision.crop_size % 16 == 0
    assert CONFIG.vision.crop_size >= 144

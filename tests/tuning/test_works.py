import pytest
import torch

from bench.bubble.subjects import random_model
from bench.shapes import TINY
from photonlite.errors import SettingsError
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.model import MoondreamModel
from photonlite.tuning.works import Decoding, encoder_of, encoding

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> MoondreamModel:
    return random_model(MoondreamConfig.from_dict(TINY), CPU, torch.float32)


@torch.inference_mode()
def test_a_step_gives_logits_and_repeats_itself(model: MoondreamModel) -> None:
    step = Decoding(model, 3, 40, CPU, FusedDecode(model.config.text, model.packed_blocks))

    step()
    assert step.logits is not None
    first = step.logits.clone()
    step()

    assert first.shape == (3, model.shape.vocab_size)
    assert torch.equal(step.logits, first), "the position stays, and its input is not overwritten"
    assert not torch.equal(first[0], first[1])


def test_a_model_without_fused_steps_is_refused_with_the_reason(model: MoondreamModel) -> None:
    with pytest.raises(SettingsError, match="kernels take weights in"):
        Decoding(model, 1, 40, CPU)


def test_a_context_beyond_the_models_is_refused(model: MoondreamModel) -> None:
    decoder = FusedDecode(model.config.text, model.packed_blocks)

    with pytest.raises(SettingsError, match="256 positions"):
        Decoding(model, 1, 256, CPU, decoder)


@torch.inference_mode()
@pytest.mark.parametrize("crops", [1, 3])
def test_an_encoding_ends_at_the_embeddings_of_one_image(model: MoondreamModel, crops: int) -> None:
    embeddings = encoding(model, encoder_of(model), crops, CPU)()

    assert isinstance(embeddings, torch.Tensor)
    assert embeddings.shape == (model.config.prefix_length - 1, model.shape.dim)

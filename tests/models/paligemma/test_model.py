"""Networks against transformers, on tiny random checkpoints in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.models.families import LoadOptions
from photonlite.models.layers import MaskedAttention, attend
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.images import cut_patches
from photonlite.models.paligemma.model import LOCATIONS, PaliGemmaModel
from photonlite.models.paligemma.weights import load_model
from photonlite.models.shards import CONFIG_NAME, read_json
from tests.models.paligemma.tiny import BOS, CASES, FIRST_LOCATION, IMAGE_ID, NEW_LINE, noise, reference_model

TOLERANCE = 1e-4
STEPS = 20


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


class Growing:
    """Attention whose keys and values are kept: a prompt in both directions, then one position after the other."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: Any = None) -> Tensor:
        if layer not in self.kept:
            self.kept[layer] = k, v
            return attend(q, k, v, None, rule)
        k, v = (torch.cat(pair, dim=1) for pair in zip(self.kept[layer], (k, v), strict=True))
        self.kept[layer] = k, v
        return attend(q, k, v, rule.limit(torch.ones(1, k.shape[1], dtype=torch.bool)), rule)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def oracle(case: str) -> Any:
    return reference_model(case)


@pytest.fixture(scope="module")
def model(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> PaliGemmaModel:
    folder: Path = tmp_path_factory.mktemp("model")
    oracle.save_pretrained(folder)
    config = PaliGemmaConfig.from_dict(read_json(folder / CONFIG_NAME, ValueError))
    files = [folder / "model.safetensors"]
    return load_model(files, config, FIRST_LOCATION, LoadOptions("cpu", torch.float32))


def pixels_of(model: PaliGemmaModel, count: int) -> tuple[Tensor, Tensor]:
    """Return random patches of so many images as both towers read them: uint8 rows, and normalised images."""
    spec = model.crop_spec
    cut = [torch.from_numpy(cut_patches(noise(seed, (50, 31)), spec).patches) for seed in range(count)]
    rows = torch.stack(cut)
    grid, patch = spec.grid, spec.patch
    images = rows.view(count, grid, grid, 3, patch, patch).permute(0, 3, 1, 4, 2, 5).reshape(count, 3, spec.side, -1)
    return rows.flatten(0, 1), (images.float() / 255 - 0.5) / 0.5


def test_images_give_the_features_of_transformers(model: PaliGemmaModel, oracle: Any) -> None:
    patches, images = pixels_of(model, 3)

    with torch.no_grad():
        found = model.vision.encode(patches, [(model.crop_spec.grid,) * 2] * 3)
        wanted = oracle.model.get_image_features(images).pooler_output

    assert found.shape == (1, 3 * model.crop_spec.positions, model.config.text.dim)
    assert distance(found[0], wanted.flatten(0, 1)) < TOLERANCE


@pytest.mark.parametrize("length", [1, 12])
def test_a_prompt_and_twenty_steps_give_the_logits_and_tokens_of_transformers(
    model: PaliGemmaModel, oracle: Any, length: int
) -> None:
    patches, images = pixels_of(model, 1)
    count = model.crop_spec.positions
    words = torch.randint(4, 390, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    ids = [IMAGE_ID] * count + [BOS, *words, NEW_LINE]
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids]), "pixel_values": images}
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])

    with torch.no_grad():
        wanted = oracle.generate(
            **inputs, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, eos_token_id=None,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        x = model.embed(torch.tensor(ids))[None].clone()
        x[:, :count] = model.vision.encode(patches, [(1, 1)])
        attention, chosen = Growing(), []
        for step in range(STEPS):
            start = len(ids) + step - 1 if step else 0
            hidden = model(x, torch.arange(start, len(ids) + step), attention)[:, -1]
            logits = model.logits(hidden)
            assert distance(logits[0], wanted.logits[step][0]) < TOLERANCE, step
            chosen.append(int(logits.argmax()))
            x = model.embed(torch.tensor([[chosen[-1]]]))

    assert chosen == wanted.sequences[0, len(ids) :].tolist()
    assert len(set(chosen)) > 2  # it says more than one word


def test_locations_are_the_tokens_of_a_coordinate(model: PaliGemmaModel) -> None:
    hidden = torch.randn(5, model.config.text.dim)
    bins = torch.tensor([0, 1, 511, 1022, 1023])
    values = model.coordinate_of(bins, LOCATIONS)

    assert torch.equal(
        model.coordinate_logits(hidden), model.logits(hidden)[:, FIRST_LOCATION : FIRST_LOCATION + LOCATIONS]
    )
    assert torch.equal(model.embed_coordinates(values), model.embed(FIRST_LOCATION + bins))
    assert values[[0, 4]].tolist() == [0, 1]
    assert values[1].item() == pytest.approx(1 / 1023)


def test_words_are_scaled_by_the_root_of_their_size_rounded_to_the_type(model: PaliGemmaModel) -> None:
    wide, ids = model.text.words, torch.arange(50)
    narrow = PaliGemmaModel(model.config, FIRST_LOCATION).to(torch.bfloat16)
    with torch.no_grad():
        narrow.text.words.copy_(wide)

        scale = torch.tensor(model.config.text.dim**0.5, dtype=torch.bfloat16)
        assert torch.equal(narrow.embed(ids), narrow.text.words[ids] * scale)
        assert torch.equal(model.embed(ids), wide[ids] * float(torch.tensor(model.config.text.dim**0.5)))


def test_statistics_of_keys_and_values_are_of_their_magnitude(model: PaliGemmaModel) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(layer: int, q: Tensor, k: Tensor, v: Tensor, rule: Any = None) -> Tensor:
        seen.append((k, v))
        return MaskedAttention()(layer, q, k, v, rule)

    with torch.no_grad():
        model(model.embed(torch.randint(4, 390, (2, 64))), torch.arange(64), watch)

    for estimates, tensors in zip(model.kv_statistics(), seen, strict=True):
        for estimate, tensor in zip(estimates, tensors, strict=True):
            assert 0.2 < estimate / float(tensor.square().mean().sqrt()) < 5

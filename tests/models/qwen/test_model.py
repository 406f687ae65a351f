"""The network against transformers: logits of prompts and of decode steps, for any number of images."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from photonlite.models.families import LoadOptions
from photonlite.models.layers import attend
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.images import cut_patches
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.positions import prompt_positions
from photonlite.models.qwen.vision import normalize_patches
from photonlite.models.qwen.weights import load_model
from tests.models.qwen.tiny import CASES, IDS, reference_model, save, settings

STEPS = 20
SIZES = [(70, 50), (33, 130), (200, 190), (28, 28)]  # width and height
Part = int | tuple[int, int]  # a number of tokens of text, or an image of a size
PROMPTS: dict[str, list[Part]] = {
    "text only": [17],
    "one image": [3, SIZES[0], 5],
    "three images of different sizes": [2, SIZES[1], 1, SIZES[2], SIZES[3], 9],
    "two turns": [4, SIZES[0], 20, SIZES[2], 6],
}


class KeptKeys:
    """Attention over all keys and values so far, kept whole."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.kept:
            k, v = (torch.cat(pair, dim=1) for pair in zip(self.kept[layer], (k, v), strict=True))
        self.kept[layer] = k, v
        return attend(q, k, v, torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool())


@pytest.fixture(scope="module", params=CASES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, QwenModel]:
    case = request.param
    reference = reference_model(case)
    folder = save(reference, tmp_path_factory.mktemp(case), case)
    config = QwenConfig.from_dict(json.loads((folder / "config.json").read_text()))
    files, images = [folder / "model.safetensors"], settings(case, config)
    return case, reference, load_model(files, config, images, LoadOptions("cpu", torch.float32))


def noise(size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(size).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


class Prompt:
    """A prompt as both models read it."""

    def __init__(self, parts: list[Part], case: str, config: QwenConfig) -> None:
        how = settings(case, config)
        self.images = [cut_patches(noise(part), how) for part in parts if not isinstance(part, int)]
        images = iter(self.images)
        draw = np.random.default_rng(1)
        ids: list[int] = []
        self.layout: list[int | tuple[int, int]] = []
        for part in parts:
            if isinstance(part, int):
                ids += draw.integers(0, 300, part).tolist()
                self.layout.append(part)
            else:
                rows, columns = (side // 2 for side in next(images).grid)
                ids += [IDS["vision_start_token_id"], *[IDS["image_token_id"]] * rows * columns]
                ids += [IDS["vision_end_token_id"]]
                self.layout += [1, (rows, columns), 1]
        self.ids = torch.tensor([ids])
        self.is_image = self.ids == IDS["image_token_id"]
        self.patches = self.grids = None
        if self.images:
            pixels = [torch.from_numpy(image.patches) for image in self.images]
            self.patches = normalize_patches(torch.cat(pixels), how, config.vision.frames)
            self.grids = [image.grid for image in self.images]


def reference_logits(model: Any, prompt: Prompt) -> Iterator[tuple[Tensor, int]]:
    """Yield logits and the greedy token: of the whole prompt, then of each step."""
    inputs: dict[str, Any] = {"input_ids": prompt.ids, "mm_token_type_ids": prompt.is_image.int()}
    if prompt.grids:
        grids = torch.tensor([(1, *grid) for grid in prompt.grids])
        inputs |= {"pixel_values": prompt.patches, "image_grid_thw": grids}
    model.model.rope_deltas = None
    cache = None
    for _ in range(STEPS + 1):
        output = model(**inputs, past_key_values=cache, use_cache=True)
        cache, token = output.past_key_values, int(output.logits[0, -1].argmax())
        yield output.logits[0], token
        inputs = {"input_ids": torch.tensor([[token]])}


def own_logits(model: QwenModel, prompt: Prompt) -> Iterator[tuple[Tensor, int]]:
    positions = prompt_positions(prompt.layout)
    x, deepstack = torch.nn.functional.embedding(prompt.ids, model.text.words), None
    if prompt.grids:
        merged, *extra = model.vision(prompt.patches, prompt.grids)
        x[prompt.is_image] = merged
        deepstack = x.new_zeros(len(extra), *x.shape)
        for target, features in zip(deepstack, extra, strict=True):
            target[prompt.is_image] = features
    axes, attention = torch.from_numpy(positions.axes), KeptKeys()
    length = prompt.ids.shape[1]
    for step in range(STEPS + 1):
        logits = model.text.logits(model.text(x, axes, attention, deepstack))[0]
        token = int(logits[-1].argmax())
        yield logits, token
        axes = torch.tensor([length + step + positions.delta]).expand(3, 1)
        x, deepstack = torch.nn.functional.embedding(torch.tensor([[token]]), model.text.words), None


# "two turns" have an image between words too.
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.long] * (one == "one image")) for one in PROMPTS]
)
@torch.inference_mode()
def test_logits_and_tokens_equal_those_of_transformers(models: tuple[str, Any, QwenModel], name: str) -> None:
    case, reference, model = models
    prompt = Prompt(PROMPTS[name], case, model.config)
    for (expected, token), (logits, own_token) in zip(
        reference_logits(reference, prompt), own_logits(model, prompt), strict=True
    ):
        assert (logits - expected).norm() <= 1e-4 * expected.norm()
        assert own_token == token


@torch.inference_mode()
def test_an_image_has_the_same_embeddings_alone_and_packed_with_others(models: tuple[str, Any, QwenModel]) -> None:
    case, _, model = models
    prompt = Prompt(PROMPTS["three images of different sizes"], case, model.config)
    assert prompt.patches is not None
    assert prompt.grids
    together = model.vision(prompt.patches, prompt.grids)
    sizes = [rows * columns for rows, columns in prompt.grids]
    alone = [
        model.vision(patches, [grid]) for patches, grid in zip(prompt.patches.split(sizes), prompt.grids, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), rtol=1e-5, atol=1e-5)


def test_a_model_is_loaded_without_gradients_and_in_evaluation_mode(models: tuple[str, Any, QwenModel]) -> None:
    model = models[2]
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())

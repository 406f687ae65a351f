"""Models with random weights behind the public API, and images for their requests."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from bench.bubble.subjects import random_model
from bench.gpu.paligemma import random_paligemma
from bench.gpu.qwen import random_qwen
from bench.shapes import SHAPES
from photonlite.api import VisionModel
from photonlite.config import EngineConfig, ImageLimits
from photonlite.images.crops import CropSpec, select_tiling
from photonlite.models.checkpoint import LoadedModel
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.moondream import checkpoint
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.tokenizer import Tokenizer
from photonlite.runner.ranks.leader import TeamModel, load_team

NEVER = -1e4
"""Bias of the logit of the end id: random weights must not end a sequence early by chance."""

_numbers = itertools.count(1)


def endless_model(config: MoondreamConfig, device: torch.device, dtype: torch.dtype) -> MoondreamModel:
    """Make a model with random weights that never chooses the end id, so that limits alone end its sequences."""
    model = random_model(config, device, dtype)
    model.text.lm_head.bias[config.tokenizer.eos_id] = NEVER
    return model


def load_endless(name: str, device: torch.device, dtype: torch.dtype, *, tiny: bool) -> LoadedModel:
    """Make a model of a shape with random weights whose free text never ends before its limit."""
    shape = SHAPES[name]
    raw = shape.tiny if tiny else shape.raw
    if shape.family == "moondream":
        config = MoondreamConfig.from_dict(raw)
        return LoadedModel("random weights", endless_model(config, device, dtype), prompts_of(config))
    if shape.family == "qwen":
        loaded = random_qwen(QwenConfig.from_dict(raw), device, dtype)
    else:
        loaded = random_paligemma(PaliGemmaConfig.from_dict(raw), device, dtype)
    model: Any = loaded.model
    text = model.text
    head = text.words if text.head is None else text.head.weight
    vocabulary = loaded.prompts.vocabulary
    head[[vocabulary.end, *vocabulary.other_ends]] = 0  # heads have no bias; some logit of so many is above 0
    return loaded


def divide(model: MoondreamModel, ranks: int, device: torch.device, dtype: torch.dtype, folder: Path) -> TeamModel:
    """Divide a model among ranks, each of which reads its share of a file in a folder."""
    path = folder / "model.safetensors"
    save_file(dict(model.state_dict()), path)
    files = ModelFiles("random weights", checkpoint, model.config, resolve(None).tokenizer, (path,), {})
    divided = load_team(files, ranks, device=device, dtype=dtype).model
    assert isinstance(divided, TeamModel)
    return divided


def prompts_of(config: MoondreamConfig) -> MoondreamPrompts:
    """Write prompts with the tokenizer of the shipped checkpoint: any vocabulary of this size or larger has its ids."""
    path = resolve(None).tokenizer
    return MoondreamPrompts(
        config, Tokenizer(path, vocab_size=config.text.vocab_size, controls_to=config.family.controls_to)
    )


def serve(model: MoondreamModel, device: torch.device, dtype: torch.dtype, engine: EngineConfig) -> VisionModel:
    """Serve a model through the public API."""
    loaded = LoadedModel("random weights", model, prompts_of(model.config))
    return VisionModel(loaded, device, dtype, ImageLimits(), engine)


def make_images(width: int, height: int) -> Iterator[Image.Image]:
    """Yield decoded images of noise forever; no two of the process are equal."""
    base = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    while True:
        pixels = base.copy()
        pixels.reshape(-1)[:8] = np.array([next(_numbers)], np.int64).view(np.uint8)
        yield Image.fromarray(pixels)


def crop_spec(config: MoondreamConfig) -> CropSpec:
    """Return the crop spec of a model."""
    vision = config.vision
    return CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)


def size_with_crops(spec: CropSpec, crops: int) -> tuple[int, int]:
    """Return the width and height of an image with this number of crops.

    Raises:
        ValueError: No tiling has this number of crops.
    """
    if crops == 1:
        return spec.crop_size, spec.crop_size
    for rows in range(1, crops):
        if (crops - 1) % rows:
            continue
        tiling = rows, (crops - 1) // rows
        height, width = (count * spec.window + 2 * spec.margin for count in tiling)
        if select_tiling(height, width, spec) == tiling:
            return width, height
    raise ValueError(f"no image is cut into {crops} crops by {spec}")


def question_of(prompts: MoondreamPrompts, tokens: int) -> str:
    """Return a question whose prompt has this number of tokens, or the fewest possible if that is more.

    Args:
        prompts: Of the model.
        tokens: Of the prompt, the image's aside.
    """
    words = ["a"]
    while len(prompts.query(" ".join(words), reasoning=False, refs=())) < tokens:
        words.append("a")
    return " ".join(words)

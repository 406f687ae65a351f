"""The golden case in memory: the model, its images, and what the public reference computes for them."""

from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from photonlite.images.crops import ImageCrops, cut_crops
from photonlite.models.checkpoint import LoadedModel, load_checkpoint
from tests.tiny import EXPECTED, GOLDEN

TOLERANCE = 2e-3
_LARGE = "images/1280x720.png"
CASES = [
    pytest.param(case, id=case["image"].split("/")[1][:-4], marks=[pytest.mark.long] * (case["image"] == _LARGE))
    for case in EXPECTED["cases"]
]
SKILLS = ("caption", "query", "detect", "point")


@cache
def loaded() -> LoadedModel:
    return load_checkpoint(GOLDEN, device=torch.device("cpu"), dtype=torch.float32)


@cache
def _tensors() -> dict[str, Tensor]:
    return load_file(GOLDEN / "expected.safetensors")


def expected(case: dict[str, Any], name: str) -> Tensor:
    return _tensors()[f"{case['image'].split('/')[1][:-4]}.{name}"].float()


def crops(case: dict[str, Any]) -> ImageCrops:
    return cut_crops(Image.open(GOLDEN / case["image"]).convert("RGB"), loaded().model.crop_spec)


@cache
def _embeddings(name: str) -> Tensor:
    case = next(case for case in EXPECTED["cases"] if case["image"] == name)
    cut = crops(case)
    with torch.inference_mode():
        return loaded().model.encode_image(torch.from_numpy(cut.pixels), cut.tiling)


def embeddings(case: dict[str, Any]) -> Tensor:
    """The image's embeddings as photonlite computes them, once in a test run."""
    return _embeddings(case["image"])


def distance(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one.float() - other.float()).abs().max())

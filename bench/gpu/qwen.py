"""Qwen-VL models of published shapes with random weights, behind the public API."""

import torch

from bench.bubble.subjects import fill_randomly
from bench.gpu.tokens import byte_tokenizer
from photonlite.models.checkpoint import LoadedModel
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.prompts import QwenPrompts
from photonlite.models.qwen.template import END, END_OF_TEXT, IMAGE, START, VISION_END, VISION_START
from photonlite.models.tokenizer import Tokenizer

_PIXELS = {True: (65_536, 16_777_216), False: (3136, 12_845_056)}
"""Pixels of a resized image, least and most, of the newer and of the older generation's public checkpoints."""


def random_qwen(config: QwenConfig, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Make a model with random weights and a tokenizer of single letters that has its special tokens."""
    least, most = _PIXELS[config.version.newer]
    size = {"patch_size": config.vision.patch, "merge_size": config.vision.merge}
    half = [0.5, 0.5, 0.5]  # any numbers take the same time
    raw = {"min_pixels": least, "max_pixels": most, "image_mean": half, "image_std": half}
    images = ImageSettings.from_dict(raw | size, config.vision)
    with torch.device("meta"):
        empty = QwenModel(config, images).to(dtype)
    model = empty.to_empty(device=device).requires_grad_(False).eval()
    fill_randomly(model, 0)
    return LoadedModel("random weights", model, QwenPrompts(config, images, letters(config)))


def letters(config: QwenConfig) -> Tokenizer:
    """Return a tokenizer whose tokens are bytes, and the special ones of a configuration."""
    ids = {IMAGE: config.image_id, VISION_START: config.vision_start_id, VISION_END: config.vision_end_id}
    free = min(ids.values()) - 1
    special = ids | {text: free - place for place, text in enumerate((START, END, END_OF_TEXT))}
    return byte_tokenizer(special, config.text.vocab_size)

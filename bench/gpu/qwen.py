"""Qwen-VL models of published shapes with random weights, behind the public API."""

import json
import tempfile
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from bench.bubble.subjects import fill_randomly
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
    holes = set(range(free, max(special.values()))) - set(special.values())
    special |= {f"<|unused {index}|>": index for index in holes}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Special tokens get the ids that they are given only where the vocabulary has no holes before them.
    vocab = {letter: index for index, letter in enumerate(alphabet)}
    vocab |= {f"unused {index}": index for index in range(len(vocab), min(special.values()))}
    made = tokenizers.Tokenizer(BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    raw = json.loads(made.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ordered = sorted(special.items(), key=lambda item: item[1])
    raw["added_tokens"] = [{"id": index, "content": text, "special": True, **flags} for text, index in ordered]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(json.dumps(raw), encoding="utf-8")
        return Tokenizer(path, vocab_size=config.text.vocab_size)

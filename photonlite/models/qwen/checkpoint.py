"""From the files of a Qwen-VL checkpoint to a model: `models.families.Family`."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photonlite.config import Precision
from photonlite.device.collectives import RankGroup
from photonlite.errors import ConfigError
from photonlite.models.adapters.terms import refuse_variant as read_variant  # noqa: F401 -- a function of `Family`
from photonlite.models.families import LoadOptions
from photonlite.models.generation import ends_of
from photonlite.models.precisions import TEXT_PRECISIONS
from photonlite.models.processors import PROCESSOR_NAME, read_processor
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.parallel import keep_share
from photonlite.models.qwen.prompts import SKILLS, QwenPrompts
from photonlite.models.qwen.template import find_template
from photonlite.models.qwen.weights import adapter_place as adapter_place
from photonlite.models.qwen.weights import load_model
from photonlite.models.tokenizer import Tokenizer
from photonlite.models.tokenizer import find_tokenizer as find_tokenizer

DEFAULT_CONTEXT = 32_768
"""Positions of a request at most, unless asked for more: keys and values of all that Qwen3-VL can take, 262,144, fill
most of a card by themselves."""


@dataclass(frozen=True)
class QwenFiles:
    """What the small files of a checkpoint say."""

    model: QwenConfig
    images: ImageSettings
    template: str | None  # of chats; None for the public one
    ends: tuple[int, ...] = ()  # ids that end an answer, beside those of the template


def read_config(folder: Path, raw: Mapping[str, Any]) -> QwenFiles:
    model = QwenConfig.from_dict(raw)
    processor = read_processor(folder)
    if processor is None:
        raise ConfigError(
            f"{folder} has no {PROCESSOR_NAME}, which says how images are resized: put the one of this checkpoint, or "
            "of the release that it was trained from, there"
        )
    images = ImageSettings.from_dict(processor, model.vision)
    # One outside the vocabulary, such as a library's default, never comes.
    ends = tuple(index for index in ends_of(folder, raw) if index < model.text.vocab_size)
    return QwenFiles(model, images, find_template(folder), ends)


def skills_of(config: QwenFiles) -> tuple[str, ...]:
    return SKILLS


def rank_sizes(config: QwenFiles) -> dict[str, int]:
    text = config.model.text
    return {
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "intermediate_size": text.ff_dim,
        "vocab_size": text.vocab_size,
    }


def outline(config: QwenFiles, weights: Sequence[Path], ranks: RankGroup | None = None) -> QwenModel:
    model = QwenModel(config.model, config.images)
    if ranks is not None:
        keep_share(model, ranks)
    return model


def text_precisions(config: QwenFiles, weights: Sequence[Path]) -> Sequence[Precision | None]:
    return TEXT_PRECISIONS


def load(
    config: QwenFiles, tokenizer: Path, weights: Sequence[Path], options: LoadOptions
) -> tuple[QwenModel, QwenPrompts]:
    text = config.model.text
    length = min(text.max_context, options.max_context or DEFAULT_CONTEXT)
    model = dataclasses.replace(config.model, text=dataclasses.replace(text, max_context=length))
    words = Tokenizer(tokenizer, vocab_size=text.vocab_size)
    # Prompts first: what they refuse is known before gigabytes are read.
    prompts = QwenPrompts(model, config.images, words, config.template, config.ends)
    return load_model(weights, model, config.images, options), prompts

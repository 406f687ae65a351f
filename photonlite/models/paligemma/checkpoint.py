"""From the files of a PaliGemma checkpoint to a model: `models.families.Family`."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photonlite.config import Precision
from photonlite.errors import CheckpointError, SettingsError
from photonlite.models.adapters.terms import refuse_variant as read_variant  # noqa: F401 -- a function of `Family`
from photonlite.models.families import LoadOptions
from photonlite.models.hub import fetch
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.images import SquareImages
from photonlite.models.paligemma.masks import MaskDecoder
from photonlite.models.paligemma.model import PaliGemmaModel
from photonlite.models.paligemma.prompts import CONTROL_NAMES, SKILLS, PaliGemmaPrompts
from photonlite.models.paligemma.weights import adapter_place as adapter_place
from photonlite.models.paligemma.weights import load_model
from photonlite.models.precisions import TEXT_PRECISIONS
from photonlite.models.processors import read_processor
from photonlite.models.tokenizer import Tokenizer
from photonlite.models.tokenizer import find_tokenizer as find_tokenizer
from photonlite.settings import with_home

MASKS_NAME = "vae-oid.npz"
MASKS_VARIABLE = "PHOTONLITE_PALIGEMMA_MASKS"
"""Environment variable with the weights of the decoder of outlines: a path, or a file of the Hub, `owner/name/FILE`."""

DEFAULT_TEXT = 1024
"""Positions of prompt and answer, unless more are asked for: answers are short, and plain decode steps read all that a
request may have."""


@dataclass(frozen=True)
class PaliGemmaFiles:
    """What the small files of a checkpoint say; `masks` as in `MASKS_VARIABLE`, None for none."""

    model: PaliGemmaConfig
    masks: str | None


def read_config(folder: Path, raw: Mapping[str, Any]) -> PaliGemmaFiles:
    model = PaliGemmaConfig.from_dict(raw)
    SquareImages.of(model.vision).check(read_processor(folder) or {})
    beside = folder / MASKS_NAME
    return PaliGemmaFiles(model, os.environ.get(MASKS_VARIABLE) or (str(beside) if beside.is_file() else None))


def skills_of(config: PaliGemmaFiles) -> tuple[str, ...]:
    return SKILLS if config.masks is None else (*SKILLS, "segment")


def rank_sizes(config: PaliGemmaFiles) -> dict[str, int]:
    return {}


def outline(config: PaliGemmaFiles, weights: Sequence[Path], ranks: None = None) -> PaliGemmaModel:
    return PaliGemmaModel(config.model, first_location=0)


def text_precisions(config: PaliGemmaFiles, weights: Sequence[Path]) -> Sequence[Precision | None]:
    return TEXT_PRECISIONS


def load(
    config: PaliGemmaFiles, tokenizer: Path, weights: Sequence[Path], options: LoadOptions
) -> tuple[PaliGemmaModel, PaliGemmaPrompts]:
    text, positions = config.model.text, SquareImages.of(config.model.vision).positions
    length = min(text.max_context, options.max_context or positions + DEFAULT_TEXT)
    if length <= positions:
        raise SettingsError(
            f"a context of {length} positions has no room for an image, which takes {positions}: raise max_context"
        )
    model = dataclasses.replace(config.model, text=dataclasses.replace(text, max_context=length))
    words = Tokenizer(tokenizer, vocab_size=text.vocab_size, control_names=CONTROL_NAMES)
    # Prompts first: what they refuse is known before gigabytes are read.
    masks = None if config.masks is None else MaskDecoder(_masks_file(config.masks))
    prompts = PaliGemmaPrompts(
        model, words, masks, f"put {MASKS_NAME} beside the weights, or name it in {MASKS_VARIABLE}"
    )
    return load_model(weights, model, prompts.first_location, options), prompts


def _masks_file(name: str) -> Path:
    """Return a local file, or that of a Hub repository, downloaded unless cached; CheckpointError if there is none."""
    path = with_home(name)
    if path.is_file():
        return path
    owner, _, rest = name.partition("/")
    repository, _, file = rest.partition("/")
    if path.is_absolute() or not (owner and repository and file) or "/" in file:
        raise CheckpointError(
            f"{MASKS_VARIABLE} is {name!r:.200}, which is no file here: give a path, or a file of a Hub repository as "
            f"owner/name/{MASKS_NAME}"
        )
    found = fetch(f"{owner}/{repository}", [file]) / file
    if not found.is_file():
        raise CheckpointError(f"{owner}/{repository} has no {file}, which {MASKS_VARIABLE} names")
    return found

"""Loading a checkpoint by name: files, tokenizer, weights and prompts."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from photonlite.models.base import Model
from photonlite.models.loading import resolve
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.moondream.weights import load_model
from photonlite.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint in memory; `name` is the user's name for it, "nano" for the shipped one."""

    name: str
    model: Model
    prompts: MoondreamPrompts


def load_checkpoint(
    name: str | os.PathLike[str] | None, *, device: torch.device, dtype: torch.dtype, revision: str | None = None
) -> LoadedModel:
    """Load a model, in evaluation mode, with weights of `dtype` on `device`; for names see :mod:`.loading`.

    Raises:
        ModelNotFoundError: No model of that name was found.
        ConfigError: config.json is missing or unusable.
        CheckpointError: Weights or tokenizer are missing or unusable.
    """
    files = resolve(name, revision=revision)
    prompts = MoondreamPrompts(files.config, _tokenizer(files.tokenizer, files.config))
    model = load_model(files.weights, files.config, device=device, dtype=dtype)
    return LoadedModel(files.name, model, prompts)


def _tokenizer(path: Path, config: MoondreamConfig) -> Tokenizer:
    ids = config.tokenizer
    control_ids = [getattr(ids, field.name) for field in dataclasses.fields(ids) if field.name.endswith("_id")]
    return Tokenizer(
        path, vocab_size=config.text.vocab_size, controls_to=config.family.controls_to, control_ids=control_ids
    )

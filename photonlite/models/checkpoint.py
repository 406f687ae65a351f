"""Loading a checkpoint by name: files, tokenizer, weights and prompts."""

import os
from dataclasses import dataclass

import torch

from photonlite.models.base import Model
from photonlite.models.loading import resolve
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
    """Load a model in evaluation mode; for names and errors see `loading.resolve`."""
    files = resolve(name, revision=revision)
    config = files.config
    tokenizer = Tokenizer(
        files.tokenizer,
        vocab_size=config.text.vocab_size,
        controls_to=config.family.controls_to,
        control_ids=[index for key, index in vars(config.tokenizer).items() if key.endswith("_id")],
    )
    model = load_model(files.weights, config, device=device, dtype=dtype)
    return LoadedModel(files.name, model, MoondreamPrompts(config, tokenizer))

"""Loading a checkpoint by name."""

import os
from dataclasses import dataclass

import torch

from photonlite.grammar.prompts import Prompts
from photonlite.models.base import Model
from photonlite.models.loading import resolve


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint in memory; `name` is the user's name for it, "nano" for the shipped one."""

    name: str
    model: Model
    prompts: Prompts


def load_checkpoint(
    name: str | os.PathLike[str] | None, *, device: torch.device, dtype: torch.dtype, revision: str | None = None
) -> LoadedModel:
    """Load a model in evaluation mode; for names and errors see `loading.resolve`."""
    files = resolve(name, revision=revision)
    model, prompts = files.family.load(files.config, files.tokenizer, files.weights, device=device, dtype=dtype)
    return LoadedModel(files.name, model, prompts)

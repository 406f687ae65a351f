"""Loading a checkpoint by name."""

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from photonlite.device.collectives import RankGroup
from photonlite.grammar.prompts import Prompts
from photonlite.models.base import Model
from photonlite.models.families import Family
from photonlite.models.loading import ModelFiles, resolve
from photonlite.request import RequestSettings


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint in memory; `name` is the user's name for it, "nano" for the shipped one."""

    name: str
    model: Model
    prompts: Prompts
    sampling: RequestSettings = field(default_factory=RequestSettings)  # how its makers sample text
    files: ModelFiles | None = None  # None for a model that was made in memory
    family: Family | None = None  # reads its adapters; None for a model that was not loaded from files


def load_checkpoint(
    name: str | os.PathLike[str] | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    revision: str | None = None,
    max_context: int | None = None,
) -> LoadedModel:
    """Load a model in evaluation mode; for names and errors see `loading.resolve`, for the rest `families.Family`."""
    return load_files(resolve(name, revision=revision), device=device, dtype=dtype, max_context=max_context)


def load_files(
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_context: int | None = None,
    ranks: RankGroup | None = None,
) -> LoadedModel:
    """Load a model, or a rank's share of one, from files that were found before; see `load_checkpoint`."""
    options: dict[str, Any] = {"device": device, "dtype": dtype, "max_context": max_context}
    if ranks is not None:
        options["ranks"] = ranks
    model, prompts = files.family.load(files.config, files.tokenizer, files.weights, **options)
    return LoadedModel(files.name, model, prompts, files.sampling, files, files.family)

"""Loading a checkpoint by name."""

import os
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import nn

from photonlite.device.collectives import RankGroup
from photonlite.errors import SettingsError
from photonlite.grammar.prompts import Prompts
from photonlite.models.base import Model
from photonlite.models.families import Family, LoadOptions
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import precisions_of, prepare
from photonlite.request import RequestSettings


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint in memory; `name` is the user's name for it, "nano" for the shipped one."""

    name: str
    model: Model
    prompts: Prompts
    sampling: RequestSettings = field(default_factory=RequestSettings)  # how its makers sample text
    files: ModelFiles | None = None  # None for a model that was made in memory
    precisions: Precisions = field(default_factory=Precisions)  # of its weights
    family: Family | None = None  # reads its adapters; None for a model that takes none


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
    precisions: Precisions | None = None,
) -> LoadedModel:
    """Load a model, or a rank's share of one, from files that were found before; see `load_checkpoint`.

    Without `precisions` weights stay as the files have them. Raises a SettingsError for others than those of files
    that are quantised, and for quantised weights that several ranks would share.
    """
    if files.stored and precisions and not files.stored.include(precisions):
        raise SettingsError(
            f"weights were asked for with {precisions}, but the files have {files.stored}: leave it out, or load the "
            "release that they were made from"
        )
    precisions = files.stored or precisions or Precisions()
    if ranks is not None:
        refuse_ranks(precisions, ranks.count)
    options = LoadOptions(device, dtype, max_context, ranks, precisions)
    model, prompts = files.family.load(files.config, files.tokenizer, files.weights, options)
    prepare(cast(nn.Module, model), device)
    layers = precisions_of(cast(nn.Module, model))
    found = replace(precisions, text=layers.get("text"), vision=layers.get("vision"))
    return LoadedModel(files.name, model, prompts, files.sampling, files, found, files.family)


def refuse_ranks(precisions: Precisions | None, count: int) -> None:
    """Raise SettingsError for quantised weights that several ranks would share."""
    if precisions:
        raise SettingsError(
            f"engine setting 'tensor_parallel' is {count}, but weights with {precisions} cannot be divided: load them "
            "in full precision, or on one device"
        )

"""Adapters as PEFT writes them, and the same changes made to a model's weights."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from photonlite.models.checkpoint import LoadedModel
from photonlite.models.moondream import checkpoint
from tests.serving import double

Matrices = dict[str, tuple[Tensor, Tensor]]
"""A and B by the public name of a layer."""


def random_matrices(sizes: Mapping[str, tuple[int, int]], rank: int, seed: int, scale: float = 0.5) -> Matrices:
    """Draw matrices for layers of so many inputs and outputs."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: (
            torch.randn(rank, inputs, generator=draw) * inputs**-0.5,
            torch.randn(outputs, rank, generator=draw) * scale,
        )
        for name, (inputs, outputs) in sizes.items()
    }


def linear_sizes(model: nn.Module, parts: Sequence[str] = ("text.blocks.", "vision.")) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of the linear layers whose names begin with one of some parts."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    return {name: (one.in_features, one.out_features) for name, one in layers.items() if name.startswith(tuple(parts))}


def save_peft(folder: Path, matrices: Matrices, alpha: float = 8, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, halves in matrices.items():
        for half, value in zip("AB", halves, strict=True):
            tensors[f"base_model.model.{name}.lora_{half}.weight"] = value.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    rank = len(next(iter(matrices.values()))[0])
    entries = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(entries | config))
    return folder


def merged(model: Any, matrices: Matrices, scale: float) -> Any:
    """Return a copy of a model whose weights have the products of matrices, by its own names of layers."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, (a, b) in matrices.items():
            weight = changed.get_submodule(name).weight
            weight += scale * b.to(weight) @ a.to(weight)
    return changed


def adaptable(loaded: LoadedModel | None = None) -> LoadedModel:
    """Return a tiny model in double precision that takes adapters."""
    loaded = loaded or double()
    return LoadedModel(loaded.name, loaded.model, loaded.prompts, loaded.sampling, family=checkpoint)

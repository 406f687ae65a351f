"""From the name of an adapter to its weights in host memory.

| name | files |
|---|---|
| a folder | adapter_config.json and adapter_model.safetensors, as PEFT writes them |
| a .safetensors file | that file, and adapter_config.json beside it; without one, in a format of the model's makers |
| "owner/name" | a Hub repository with PEFT's two files, from the cache or over the network |
"""

import hashlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from photonlite.errors import AdapterError, CheckpointError, ModelNotFoundError
from photonlite.models.adapters.peft import check_config, find_pairs, places_of, scales_of
from photonlite.models.adapters.terms import AdapterTerm, AdapterWeights, check_terms, wide
from photonlite.models.families import Family
from photonlite.models.hub import fetch
from photonlite.models.loading import is_hub_id
from photonlite.models.shards import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_NAME,
    FLOAT_BYTES,
    read_headers,
    read_json,
    refuse_pickle,
)


@dataclass(frozen=True)
class AdapterFiles:
    """The files of an adapter on this machine; `config` is None for a format of the model's makers."""

    source: str  # how the user named them
    weights: Path
    config: Path | None


def find_adapter(source: str | os.PathLike[str]) -> AdapterFiles:
    """Find the files of an adapter, and download those of a Hub id; AdapterError where there are none."""
    if not isinstance(source, str | os.PathLike) or not os.fspath(source):
        raise AdapterError(f"{source!r:.80} names no adapter: give a folder, a .safetensors file or a Hub id")
    name = os.fspath(source)
    path = Path(os.path.expanduser(name))
    try:
        if path.is_dir():
            return _of_folder(name, path)
        if path.is_file():
            refuse_pickle(path)
            if path.suffix != ".safetensors":
                raise AdapterError(f"{path} is no .safetensors file: only those, and folders that hold them, are read")
            config = path.with_name(ADAPTER_CONFIG_NAME)
            return AdapterFiles(name, path, config if config.is_file() else None)
        if isinstance(source, str) and is_hub_id(source):
            return _of_folder(name, fetch(source, [ADAPTER_CONFIG_NAME, ADAPTER_NAME]))
    except (CheckpointError, ModelNotFoundError, OSError) as cause:
        raise AdapterError(f"the adapter {name!r:.200} cannot be loaded: {cause}") from cause
    raise AdapterError(f"there is no adapter {name!r:.200}: no such folder or file, and it is no Hub id (owner/name)")


def read_adapter(
    files: AdapterFiles, model: nn.Module, family: Family, *, dtype: torch.dtype, rank: int
) -> AdapterWeights:
    """Read, check and convert an adapter of a model; AdapterError says by name what cannot be used.

    Names and shapes of the header are checked before data are read. The key is a hash of what was read: the same
    content under another name has the same.
    """
    source = f"the adapter {files.source!r:.200}"

    def terms_of(tensors: Mapping[str, Tensor]) -> list[AdapterTerm]:
        terms = _terms(tensors, config, model, family, source)
        check_terms(terms, model, rank, source)
        return terms

    try:
        config = None if files.config is None else read_json(files.config, AdapterError)
        terms_of(_outlines(files.weights, config is None, source))
        data = files.weights.read_bytes()
    except (CheckpointError, OSError) as cause:
        raise AdapterError(f"{source} cannot be read: {cause}") from cause
    with ThreadPoolExecutor(1) as beside:  # a hash of megabytes holds no GIL
        hashed = beside.submit(hashlib.sha256, data)
        try:
            tensors = load_tensors(data)
        except SafetensorError as cause:
            raise AdapterError(f"{source} cannot be read: {cause}") from cause
        finished = tuple(_rounded(term, dtype, source) for term in terms_of(tensors))
    digest = hashlib.sha256(repr(config).encode() + hashed.result().digest())
    return AdapterWeights(digest.hexdigest(), finished)


def _outlines(weights: Path, variant: bool, source: str) -> dict[str, Tensor]:
    """Return tensors without values in the shapes of a file; AdapterError for tensors that are no weights."""
    outlines = {}
    for info in read_headers([weights]):
        if info.dtype not in FLOAT_BYTES:
            raise AdapterError(f"{source} holds {info.name} of type {info.dtype}: {', '.join(FLOAT_BYTES)} are read")
        if (variant and len(info.shape) < 2) or math.prod(max(1, side) for side in info.shape) >= 2**62:
            raise AdapterError(f"{source} holds {info.name} of shape {list(info.shape)}: matrices are needed")
        outlines[info.name] = torch.empty(info.shape, device="meta")
    return outlines


def _terms(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None, model: nn.Module, family: Family, source: str
) -> list[AdapterTerm]:
    if config is None:
        return family.read_variant(model, tensors, source)
    check_config(config, source)
    if not tensors:
        raise AdapterError(f"{source} holds no tensors")
    pairs = find_pairs(tensors, source)
    places = places_of(pairs, lambda module: family.adapter_place(model, module), source)
    scales = scales_of(pairs, config, source)
    return [AdapterTerm(places[module], a, _scaled(b, scales[module])) for module, (a, b) in pairs.items()]


def _rounded(term: AdapterTerm, dtype: torch.dtype, source: str) -> AdapterTerm:
    rounded = AdapterTerm(term.place, term.a.to(dtype), term.b.to(dtype))
    if not (_is_finite(rounded.a) and _is_finite(rounded.b)):
        raise AdapterError(
            f"{source} holds numbers at {term.place.layer} that are not finite in {dtype}: it is damaged, or its "
            "scale is too large"
        )
    return rounded


def _is_finite(matrix: Tensor) -> bool:
    """Whether all numbers are: extremes are NaN where one is, and are found 7 times as quickly as `isfinite` looks."""
    return all(bool(extreme.isfinite()) for extreme in matrix.aminmax())


def _scaled(matrix: Tensor, scale: float) -> Tensor:
    """Return a matrix times its scale, not yet rounded."""
    return matrix if scale == 1 else wide(matrix) * scale


def _of_folder(name: str, folder: Path) -> AdapterFiles:
    config, weights = folder / ADAPTER_CONFIG_NAME, folder / ADAPTER_NAME
    if not config.is_file():
        raise AdapterError(
            f"{folder} has no {ADAPTER_CONFIG_NAME}: name the folder that PEFT wrote, or a .safetensors file"
        )
    if not weights.is_file():
        for path in sorted(folder.iterdir()):
            refuse_pickle(path)
        raise AdapterError(f"{folder} has no {ADAPTER_NAME}: only safetensors are read")
    return AdapterFiles(name, weights, config)

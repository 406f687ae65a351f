"""From the name of a model to the files of its checkpoint on this machine.

| name | files |
|---|---|
| none | the checkpoint that ships with the package |
| a folder | its config.json, tokenizer.json and safetensors |
| a .safetensors file | that file, config.json and tokenizer.json beside it |
| "owner/name" | a Hub repository, from the cache or over the network |
"""

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from photonlite.errors import CheckpointError, ConfigError, ModelNotFoundError
from photonlite.models.families import KNOWN_MODELS, Family, family_of
from photonlite.models.generation import read_generation
from photonlite.models.hub import fetch
from photonlite.models.precisions import Precisions, stored_precisions
from photonlite.models.shards import CONFIG_NAME, INDEX_NAME, find_weights, read_json, refuse_adapter, refuse_pickle
from photonlite.request import RequestSettings

_SMALL_FILES = ("*.json", "*.jinja", "*.npz", "*.py")
"""What families read: configuration, tokenizer, preprocessing, templates, the decoder of outlines; code as text alone,
it is never run."""
_SHIPPED = "nano"  # name of the shipped checkpoint
_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ModelFiles:
    """The files of a checkpoint; `name` is the user's name for it, "nano" for the shipped one."""

    name: str
    family: Family
    config: Any  # of the family's own type
    tokenizer: Path
    weights: tuple[Path, ...]
    sampling: RequestSettings  # how its makers sample text
    stored: Precisions = field(default_factory=Precisions)  # of its weights


def resolve(model: str | os.PathLike[str] | None = None, *, revision: str | None = None) -> ModelFiles:
    """Find the files of a model, and download those of a Hub id that are not cached.

    A string that names a local folder or file is never looked up on the Hub, and neither is a path object; "nano" is
    the shipped checkpoint otherwise.
    Raises ModelNotFoundError, ConfigError for config.json, or CheckpointError for missing weights or tokenizer.
    """
    if model == _SHIPPED and not Path(_SHIPPED).exists():
        model = None
    path = shipped_checkpoint() if model is None else _as_path(model)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
        if not is_folder and not is_file and isinstance(model, str) and is_hub_id(model):
            return _from_hub(model, revision)
        if revision is not None and (is_folder or is_file):
            raise ModelNotFoundError(
                f"revision {revision!r} was given with {path}, which is local: leave it out, only Hub ids have any"
            )
        if is_folder:
            return _describe(_SHIPPED if model is None else str(model), path, partial(find_weights, path))
        if is_file:
            return _from_file(path)
    except OSError as cause:
        raise ModelNotFoundError(f"{_shortened(path)} cannot be read: {cause.strerror or cause}") from cause
    raise ModelNotFoundError(_unknown(str(model), path))


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None


def shipped_checkpoint() -> Path:
    """Return the shipped checkpoint's folder, in a wheel or in the repository; ModelNotFoundError if there is none."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "assets" / "nano", package.parent / "assets" / "nano")
    for place in places:
        if (place / CONFIG_NAME).is_file():
            return place
    raise ModelNotFoundError(
        f"the shipped checkpoint is in neither {places[0]} nor {places[1]}: install photonlite again, or name a model"
    )


def _as_path(model: str | os.PathLike[str]) -> Path:
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise ModelNotFoundError(
            f"{model!r} names no model: give a folder, a .safetensors file, a Hub id such as "
            f"{next(iter(KNOWN_MODELS))}, or nothing for the shipped checkpoint"
        )
    return Path(os.path.expanduser(model))  # unlike Path.expanduser, leaves a user that does not exist alone


def _from_file(path: Path) -> ModelFiles:
    refuse_pickle(path)
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path} is not a .safetensors file: only those, and folders that hold them, are loaded")
    return _describe(str(path), path.parent, lambda: (path,))


def _from_hub(repo: str, revision: str | None) -> ModelFiles:
    """Download the small files first: a model that cannot run is refused before gigabytes are downloaded."""
    folder = fetch(repo, _SMALL_FILES, revision)
    try:
        # The folder's name is the commit: both downloads are of one state of the repository.
        return _describe(repo, folder, lambda: find_weights(fetch(repo, ["*.safetensors", INDEX_NAME], folder.name)))
    except (CheckpointError, ConfigError) as cause:
        raise type(cause)(
            f"{repo} from the Hub: {cause}. (If the cache is incomplete, `hf download {repo}` completes it; pickles "
            "such as .bin and .pt are never fetched, as loading one can run any code)"
        ) from cause


def _describe(name: str, folder: Path, weights: Callable[[], tuple[Path, ...]]) -> ModelFiles:
    """Read the small files of a folder first: a model that cannot run is refused before its weights are looked for."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        refuse_adapter(folder, ConfigError)
        raise ConfigError(f"{folder} has no {CONFIG_NAME}: put the one that belongs to the weights there")
    raw = read_json(path, ConfigError)
    family = family_of(raw)
    config = family.read_config(folder, raw)
    sampling = read_generation(folder).settings
    stored = stored_precisions(raw)
    return ModelFiles(name, family, config, family.find_tokenizer(folder, config), weights(), sampling, stored)


def _unknown(model: str, path: Path) -> str:
    shown = _shortened(path)
    text = f"unknown model {_shortened(model)!r}: no folder or file {shown} exists, and it is not a Hub id (owner/name)"
    by_ending = {known.split("/")[1]: known for known in KNOWN_MODELS}
    near = [by_ending[key] for key in difflib.get_close_matches(model.lower(), by_ending)]
    if path.parent.is_dir():
        local = {child.name: str(child) for child in path.parent.iterdir()}
        near += [local[key] for key in difflib.get_close_matches(path.name, local, n=2, cutoff=0.75)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`photonlite models` lists what is known and what is local"
    return f"{text}; {hint}"


def _shortened(value: str | Path) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"

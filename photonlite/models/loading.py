"""From the name of a model to the files of its checkpoint on this machine.

| name | files |
|---|---|
| none | the checkpoint that ships with the package |
| a folder | its config.json, tokenizer.json and safetensors |
| a .safetensors file | that file, config.json and tokenizer.json beside it |
| "owner/name" | a Hub repository, from the cache or over the network |

`huggingface_hub` reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. It is imported only for Hub ids: the import is slow.
"""

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from photonlite.errors import CheckpointError, ConfigError, ModelNotFoundError
from photonlite.models.moondream.config import RELEASED_VOCAB_SIZE, MoondreamConfig
from photonlite.models.shards import INDEX_NAME, find_weights, read_json, refuse_pickle

CONFIG_NAME = "config.json"
TOKENIZER_NAME = "tokenizer.json"
KNOWN_MODELS = {"vikhyatk/moondream2": "Moondream 2: detect, point, caption, query; 1.9 B parameters"}
"""Hub ids that are tested, with a description."""

STARMIE_REPO = "moondream/starmie-v1"
STARMIE_FAMILIES = frozenset({"moondream2", "moondream3"})
"""Their public releases, recognised by the size of the vocabulary, have an outdated tokenizer or none."""

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class ModelFiles:
    """The files of a checkpoint; `name` is the user's name for it, "nano" for the shipped one."""

    name: str
    config: MoondreamConfig
    tokenizer: Path
    weights: tuple[Path, ...]


def resolve(model: str | os.PathLike[str] | None = None, *, revision: str | None = None) -> ModelFiles:
    """Find the files of a model, and download those of a Hub id that are not cached.

    A string that names a local folder or file is never looked up on the Hub, and neither is a path object.
    Raises ModelNotFoundError, ConfigError for config.json, or CheckpointError for missing weights or tokenizer.
    """
    path = shipped_checkpoint() if model is None else _as_path(model)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
        if not is_folder and not is_file and isinstance(model, str) and _HUB_ID.fullmatch(model):
            return _from_hub(model, revision)
        if revision is not None and (is_folder or is_file):
            raise ModelNotFoundError(
                f"revision {revision!r} was given with {path}, which is local: leave it out, only Hub ids have any"
            )
        if is_folder:
            weights = find_weights(path)
            return ModelFiles("nano" if model is None else str(model), *_description(path), weights)
        if is_file:
            return _from_file(path)
    except OSError as cause:
        raise ModelNotFoundError(f"{_shortened(path)} cannot be read: {cause.strerror or cause}") from cause
    raise ModelNotFoundError(_unknown(str(model), path))


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


def fetch(repo: str, names: Sequence[str], revision: str | None = None) -> Path:
    """Download files (names or patterns) of a repository's top folder; return the revision's folder in the Hub cache.

    Raises ModelNotFoundError if it does not exist, may not be read, or is not cached while the Hub is out of reach.
    """
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=list(names), ignore_patterns=["*/*"]
            )
        )
    except Exception as cause:
        # The network library below raises errors of its own, and has been replaced twice.
        raise ModelNotFoundError(_explain(cause, repo, revision)) from cause


def _explain(cause: Exception, repo: str, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    which = repo if revision is None else f"{repo} at revision {revision}"
    uncached = f"there is no folder {repo} here, {which} is not in the Hub cache ({constants.HF_HUB_CACHE}), and"
    root = cause.__cause__ or cause
    reason = f"{type(root).__name__}: {root}".splitlines()[0]
    if isinstance(cause, errors.GatedRepoError):
        return (
            f"{repo} is gated: accept its terms on its Hub page, then set HF_TOKEN to a token of that account or run "
            "`hf auth login`"
        )
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}: give a branch, a tag or a full commit id that its Hub page lists"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"there is no folder {repo} here, and no repository of that name on the Hub that this account may read: "
            "check the spelling; for a private one set HF_TOKEN or run `hf auth login`"
        )
    if isinstance(cause, errors.HFValidationError):
        return f"{repo} is neither a folder here nor a valid Hub id: {cause}"
    if constants.HF_HUB_OFFLINE:
        download = repo if revision is None else f"{repo} --revision {revision}"
        return (
            f"{uncached} HF_HUB_OFFLINE forbids fetching: unset that variable, or run `hf download {download}` "
            "where there is a network and copy the cache"
        )
    if isinstance(cause, errors.LocalEntryNotFoundError):
        return f"{uncached} the Hub cannot be reached ({reason}): check the network and try again"
    return f"{which} could not be fetched from the Hub ({reason}): check network, proxy and disk, try again"


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
    return ModelFiles(str(path), *_description(path.parent), (path,))


def _from_hub(repo: str, revision: str | None) -> ModelFiles:
    """Download the small files first: a model that cannot run is refused before gigabytes are downloaded."""
    folder = fetch(repo, [CONFIG_NAME, TOKENIZER_NAME], revision)
    try:
        config, tokenizer = _description(folder)
        # The folder's name is the commit: both downloads are of one state of the repository.
        weights = find_weights(fetch(repo, ["*.safetensors", INDEX_NAME], folder.name))
    except (CheckpointError, ConfigError) as cause:
        raise type(cause)(
            f"{repo} from the Hub: {cause}. (If the cache is incomplete, `hf download {repo}` completes it; pickles "
            "such as .bin and .pt are never fetched, as loading one can run any code)"
        ) from cause
    return ModelFiles(repo, config, tokenizer, weights)


def _description(folder: Path) -> tuple[MoondreamConfig, Path]:
    """Read the configuration and find the tokenizer of the checkpoint in a folder."""
    path, tokenizer = folder / CONFIG_NAME, folder / TOKENIZER_NAME
    if not path.is_file():
        raise ConfigError(f"{folder} has no {CONFIG_NAME}: put the one that belongs to the weights there")
    config = MoondreamConfig.from_dict(read_json(path, ConfigError))
    released = config.family.name in STARMIE_FAMILIES and config.text.vocab_size == RELEASED_VOCAB_SIZE
    if released and not (tokenizer.is_file() and _end_of_text_id(tokenizer) == config.tokenizer.eos_id):
        return config, _starmie(tokenizer)
    if not tokenizer.is_file():
        raise CheckpointError(f"{folder} has no {TOKENIZER_NAME}: put the tokenizer of the model there")
    return config, tokenizer


def _end_of_text_id(path: Path) -> int | None:
    added = read_json(path, CheckpointError).get("added_tokens") or []
    return next((token.get("id") for token in added if token.get("content") == _END_OF_TEXT), None)


def _starmie(path: Path) -> Path:
    """Return the tokenizer of `STARMIE_REPO`, in place of one that is missing or older than the weights."""
    try:
        found = fetch(STARMIE_REPO, [TOKENIZER_NAME]) / TOKENIZER_NAME
    except ModelNotFoundError as cause:
        raise ModelNotFoundError(
            f"{path} is missing or older than the weights, and the right one could not be had from {STARMIE_REPO}: "
            f"{cause}. Or put the {TOKENIZER_NAME} of {STARMIE_REPO} beside the weights"
        ) from cause
    if not found.is_file():
        raise CheckpointError(f"{STARMIE_REPO} in the Hub cache lacks {TOKENIZER_NAME}: `hf download {STARMIE_REPO}`")
    return found


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

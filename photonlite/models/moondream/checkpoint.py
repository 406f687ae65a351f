"""From the files of a Moondream checkpoint to a model: `models.families.Family`."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from photonlite.config import Precision
from photonlite.device.collectives import RankGroup
from photonlite.errors import CheckpointError, ConfigError, ModelNotFoundError
from photonlite.models.families import LoadOptions
from photonlite.models.hub import fetch
from photonlite.models.moondream.adapters import adapter_place as adapter_place
from photonlite.models.moondream.adapters import read_variant as read_variant
from photonlite.models.moondream.config import RELEASED_VOCAB_SIZE, MoondreamConfig
from photonlite.models.moondream.int4 import INT4, find_int4
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.moondream.weights import load_model, outline_model, parameter_name
from photonlite.models.precisions import TEXT_PRECISIONS
from photonlite.models.shards import TOKENIZER_BYTES, TOKENIZER_NAME, read_bounded, read_headers, read_json
from photonlite.models.tokenizer import Tokenizer
from photonlite.models.tokenizer import find_tokenizer as find_any

STARMIE_REPO = "moondream/starmie-v1"
_STARMIE_FAMILIES = frozenset({"moondream2", "moondream3"})
"""Their public releases, recognised by the size of the vocabulary, have an outdated tokenizer or none."""

_END_OF_TEXT = "<|endoftext|>"
_CODE_NAME = "moondream.py"
_OLD_TOKENIZER = re.compile(r"""from_pretrained\(\s*["']vikhyatk/moondream2["']""")


def read_config(folder: Path, raw: Mapping[str, Any]) -> MoondreamConfig:
    config = MoondreamConfig.from_dict(raw)
    if _is_released(config) and (raw.get("text_config") is not None or _names_old_tokenizer(folder / _CODE_NAME)):
        raise ConfigError(
            f"{folder} holds a release of Moondream 2 before 2025-06-21, which was trained with another tokenizer and "
            "other prompts: use a newer one, such as revision 2025-06-21"
        )
    return config


def skills_of(config: MoondreamConfig) -> tuple[str, ...]:
    return config.tokenizer.skills


def find_tokenizer(folder: Path, config: MoondreamConfig) -> Path:
    """Return the tokenizer.json of a folder, or that of `STARMIE_REPO` for a release."""
    path = folder / TOKENIZER_NAME
    if _is_released(config) and not (path.is_file() and _end_of_text_id(path) == config.tokenizer.eos_id):
        return _starmie(path)
    return find_any(folder, config)


def rank_sizes(config: MoondreamConfig) -> dict[str, int]:
    """Return what ranks divide; nothing where temperatures read all heads, or where there are experts."""
    text = config.text
    if text.tau or text.moe is not None:
        return {}
    sizes = {"n_heads": text.n_heads, "n_kv_heads": text.kv_heads, "ff_dim": text.ff_dim, "vocab_size": text.vocab_size}
    return {f"text.{name}": size for name, size in sizes.items()}


def outline(config: MoondreamConfig, weights: Sequence[Path], ranks: RankGroup | None = None) -> MoondreamModel:
    return outline_model(weights, config, ranks)


def text_precisions(config: MoondreamConfig, weights: Sequence[Path]) -> Sequence[Precision | None]:
    """Return also what published int4 can be loaded in: its other layers can be quantised, experts cannot."""
    if config.text.moe is not None:
        return (None,)
    return (None, INT4) if find_int4(read_headers(weights), parameter_name) else TEXT_PRECISIONS


def load(
    config: MoondreamConfig, tokenizer: Path, weights: Sequence[Path], options: LoadOptions
) -> tuple[MoondreamModel, MoondreamPrompts]:
    text = config.text
    length = text.max_context if options.max_context is None else min(text.max_context, options.max_context)
    config = dataclasses.replace(config, text=dataclasses.replace(text, max_context=length))
    words = Tokenizer(
        tokenizer,
        vocab_size=config.text.vocab_size,
        controls_to=config.family.controls_to,
        control_ids=[index for key, index in vars(config.tokenizer).items() if key.endswith("_id")],
    )
    return load_model(weights, config, options), MoondreamPrompts(config, words)


def _is_released(config: MoondreamConfig) -> bool:
    return config.family.name in _STARMIE_FAMILIES and config.text.vocab_size == RELEASED_VOCAB_SIZE


def _names_old_tokenizer(code: Path) -> bool:
    """Return whether a release's code, which is never run, reads the tokenizer from where it was before `STARMIE_REPO`.

    Nothing else tells old releases from new ones: their tensors have the same shapes, and new ones kept the old
    tokenizer.json.
    """
    try:
        text = read_bounded(code, ConfigError).decode(errors="replace")
    except ConfigError:
        return False  # it need not be there
    return _OLD_TOKENIZER.search(text) is not None and STARMIE_REPO not in text


def _end_of_text_id(path: Path) -> int | None:
    added = read_json(path, CheckpointError, TOKENIZER_BYTES).get("added_tokens")
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return next((token.get("id") for token in tokens if token.get("content") == _END_OF_TEXT), None)


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

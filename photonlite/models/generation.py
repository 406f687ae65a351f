"""How the makers of a checkpoint sample text: its generation_config.json, and the ids that end an answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from photonlite.errors import ConfigError, SettingsError
from photonlite.models.shards import CONFIG_NAME, read_json
from photonlite.request import RequestSettings, SamplingSettings

GENERATION_NAME: Final = "generation_config.json"

_UNSAID: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}
"""What a file that samples means where it leaves a value out: transformers writes no top_k of 50, its default."""


@dataclass(frozen=True)
class Generation:
    """What a generation_config.json says that photonlite has settings for; nothing of it without such a file.

    `settings` has names and values of `SamplingSettings`: empty for greedy answers, which are photonlite's default too.
    """

    settings: RequestSettings
    ends: tuple[int, ...] = ()


def read_generation(folder: Path) -> Generation:
    """Read the generation_config.json of a checkpoint; ConfigError, with file and key, for what is no valid value."""
    path = folder / GENERATION_NAME
    raw = read_json(path, ConfigError) if path.is_file() else {}
    raw = {key: value for key, value in raw.items() if value is not None}
    sampled = raw.get("do_sample", False)
    if not isinstance(sampled, bool):
        raise ConfigError(f"do_sample in {path} is {sampled!r:.60}: it must be true or false")
    # A penalty holds for greedy answers too.
    names = list(_UNSAID) if sampled else ["repetition_penalty"]
    settings = {name: _value(name, raw.get(name, _UNSAID[name]), path) for name in names}
    found = {name: value for name, value in settings.items() if sampled or value != 1}
    return Generation(cast(RequestSettings, found), _ids(raw.get("eos_token_id"), path))


def ends_of(folder: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids that end a text by generation_config.json and config.json, whose content is `raw`."""
    inner = raw.get("text_config")
    sections = [raw, inner] if isinstance(inner, Mapping) else [raw]
    ends = [index for section in sections for index in _ids(section.get("eos_token_id"), folder / CONFIG_NAME)]
    return tuple(dict.fromkeys((*read_generation(folder).ends, *ends)))


def _value(name: str, value: Any, path: Path) -> Any:
    if name == "top_k" and value == 0 and not isinstance(value, bool):
        return None  # no limit
    try:
        return getattr(SamplingSettings.from_dict({name: value}), name)
    except SettingsError as cause:
        raise ConfigError(f"{name} in {path} cannot be used: {cause}") from cause


def _ids(value: object, path: Path) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(index, bool) or not isinstance(index, int) or index < 0 for index in ids):
        raise ConfigError(f"eos_token_id in {path} is {value!r:.60}: it must be a token's id, or a list of ids")
    return tuple(ids)

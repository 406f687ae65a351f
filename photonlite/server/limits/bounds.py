"""Limits on texts and settings of a call."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from photonlite.request import SamplingSettings
from photonlite.server.backend import Call
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError


def bounded(call: Call, config: ServerConfig, skills: tuple[str, ...]) -> Call:
    """Check a call, and fill in the limits that it leaves out.

    Raises:
        HttpError: 422, a text or a setting is over the server's limit, or the model lacks the skill.
        SettingsError: A setting is unknown or out of its range.
    """
    if call.skill not in skills:
        raise HttpError(422, f"this model cannot {call.skill}: it can {', '.join(skills)}", code="unsupported_skill")
    if call.image is None and call.skill != "query":
        raise HttpError(422, f"{call.skill} needs an image: send image_url", code="missing_image")
    for name in ("object", "question"):
        _check_text(name, call.arguments.get(name), config.max_prompt_characters)
    settings = _bounded_settings(call.arguments.get("settings"), config)
    longest = config.deadline_s
    return dataclasses.replace(
        call,
        arguments={**call.arguments, "settings": settings},
        deadline_s=longest if call.deadline_s is None else min(call.deadline_s, longest),
    )


def _check_text(name: str, text: object, limit: int) -> None:
    if not isinstance(text, str):
        return  # the skill says what it needs
    if len(text) > limit:
        message = f"the {name} has {len(text)} characters, over the limit of {limit}: shorten it"
        raise HttpError(422, message, code="prompt_too_long", limit="max_prompt_characters")
    if not text.strip():
        message = f"the {name} is empty: give at least one character that is not white space"
        raise HttpError(422, message, code="invalid_prompt")
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise HttpError(422, f"the {name} holds half a character (a lone surrogate)", code="invalid_prompt") from cause


def _bounded_settings(given: Any, config: ServerConfig) -> Mapping[str, Any]:
    sampling = SamplingSettings.from_dict(given)
    settings = dict(given or {})
    for name, limit in (("max_tokens", config.max_tokens), ("max_objects", config.max_objects)):
        value = getattr(sampling, name)
        if name in settings and value > limit:
            message = f"setting {name!r} is {value}, over this server's limit of {limit}"
            raise HttpError(422, message, code="over_limit", limit=name)
        settings[name] = min(value, limit)
    return settings

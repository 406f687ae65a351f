"""What `/v1/chat/completions` is asked for, read from the JSON body.

| parameters | what becomes of them |
|---|---|
| `messages`, `model`, `stream`, `stream_options.include_usage`, `stop` | used |
| `max_completion_tokens` or `max_tokens`, `temperature` (0 unless given), `top_p`, `seed` | settings |
| `response_format`, `structured_outputs` | what the answer has to be: see `openai_format` |
| those of `IGNORED` | taken and ignored: they do not change what an answer says |
| those of `NEUTRAL` | taken with the values that change nothing, refused by name with any other |
| all others | refused by name |

A parameter that is null counts as left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from photonlite.server.bodies.chat_format import PARAMETERS, read_format
from photonlite.server.bodies.conversation import Conversation, malformed, read_conversation, unusable
from photonlite.server.errors import HttpError

_SETTINGS: Final = ("temperature", "top_p", "seed")
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
IGNORED: Final = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
)
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "reasoning": (False,),
    "reasoning_effort": ("none",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
_USED: Final = ("messages", "model", "stream", "stream_options", "stop", *PARAMETERS, *_LIMITS, *_SETTINGS)
KNOWN: Final = (*_USED, *IGNORED, *NEUTRAL)
_MOST_STOPS: Final = 4


@dataclass(frozen=True)
class ChatRequest:
    """A request for a completion.

    Attributes:
        conversation: What is asked.
        model: Which model is meant; None for the one that is served.
        settings: For the model, under photonlite's names.
        form: What the answer has to be, in arguments of `VisionModel.query`; nothing for plain words.
        stop: Sequences before which the answer ends.
        stream: Whether it is wanted piece by piece.
        include_usage: Whether a stream ends with the count of tokens.
    """

    conversation: Conversation
    model: str | None
    settings: dict[str, Any]
    form: dict[str, Any]
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool


def read_chat(body: object) -> ChatRequest:
    """Read the body of a request.

    Args:
        body: The JSON value.

    Raises:
        HttpError: 400 for what is no JSON object, 422 for a parameter that is unknown, missing or of another type, or
            whose value cannot be used. Values of settings are left to the model to judge.
    """
    if not isinstance(body, Mapping):
        raise HttpError(400, "the body must be a JSON object with 'messages'", code="invalid_json")
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in KNOWN:
            message = f"parameter {name!r:.60} is unknown: the parameters are {', '.join(KNOWN)}"
            raise HttpError(422, message, code="unknown_field")
    for name, values in NEUTRAL.items():
        if name in given and not _among(given[name], values):
            allowed = " or ".join(repr(value) for value in values)
            raise unusable(f"parameter {name!r} is {given[name]!r:.60}: only {allowed} is supported, leave it out")
    return ChatRequest(
        conversation=read_conversation(given.get("messages")),
        model=_text(given, "model"),
        settings=_settings(given),
        form=read_format(given),
        stop=_stops(given.get("stop")),
        stream=_flag(given, "stream"),
        include_usage=_include_usage(given),
    )


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: given[name] for name in _SETTINGS if name in given}
    limits = {name: given[name] for name in _LIMITS if name in given}
    if len(limits) > 1:
        raise unusable(f"{' and '.join(map(repr, limits))} mean the same: give one of them")
    return {**settings, **({"max_tokens": next(iter(limits.values()))} if limits else {})}


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise malformed("'stop' must be text or a list of texts")
    if len(stops) > _MOST_STOPS or not all(stops):
        raise unusable(f"'stop' must be at most {_MOST_STOPS} sequences of at least one character")
    return tuple(stops)


def _include_usage(given: Mapping[str, Any]) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, Mapping):
        raise malformed("'stream_options' must be an object such as {\"include_usage\": true}")
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            message = f"stream option {name!r:.60} is unknown: there is include_usage"
            raise HttpError(422, message, code="unknown_field")
    if not given.get("stream"):
        raise unusable("'stream_options' go with 'stream': true only")
    return _flag({name: value for name, value in options.items() if value is not None}, "include_usage")


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise malformed(f"{name!r} must be true or false")
    return value


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise malformed(f"{name!r} must be text")
    return value


def _among(value: object, values: tuple[Any, ...]) -> bool:
    """Tell whether a value is one of some, where true is not 1."""
    return any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in values)

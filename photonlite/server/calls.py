"""Calls: what the server asks a model, and the limits on it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from photonlite.api.adapters import Adapter
from photonlite.api.tasks import OPTIONS
from photonlite.config import ImageLimits
from photonlite.grammar.prompts import Size
from photonlite.images.source import DecodedImage
from photonlite.request import SamplingSettings
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.skills.tiles import check_tile, cut_tiles

Skill = Literal["caption", "query", "detect", "point", "segment", "chat"]
# Those with a route and a method of their own; a conversation takes what can answer questions.
SKILLS: Final[tuple[Skill, ...]] = ("caption", "query", "detect", "point", "segment")


@dataclass(frozen=True)
class Call:
    """One question to the model. Tenants with different cache salts share nothing that was computed for them."""

    skill: Skill
    image: bytes | DecodedImage | None = field(repr=False)
    arguments: Mapping[str, Any]  # keyword arguments of the skill's method of `VisionModel`
    stream: bool = False
    deadline_s: float | None = None  # seconds from the call; None for the server's own deadline
    cache_salt: str | None = None
    caller: str | None = None  # the tenant, or the client's address where there are no keys
    realtime: bool = False
    strict: bool = False
    adapter: str | None = None  # by name; None for the model alone
    images: tuple[bytes | DecodedImage, ...] = field(default=(), repr=False)  # of a chat, whose messages have places


class ServedModel(Protocol):
    """What the server reads of a `VisionModel`; it calls the skills' asynchronous methods through `ask_model`."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> object: ...
    @property
    def skills(self) -> tuple[str, ...]: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def last_tick_s(self) -> float: ...
    @property
    def sight(self) -> int: ...
    @property
    def reads_several(self) -> bool: ...
    @property
    def image_limits(self) -> ImageLimits: ...
    def check_call(self, method: str, **arguments: Any) -> None: ...
    def metrics(self) -> dict[str, Any]: ...
    def adapters(self) -> list[Adapter]: ...
    def load_adapter(self, adapter: str, *, name: str | None = None) -> Adapter: ...
    def unload_adapter(self, name: str) -> None: ...


def count_parts(arguments: Mapping[str, Any], size: Size | None = None, sight: int = 1, unknown: int = 9) -> int:
    """Return how many requests a call makes of the engine: its names, times image and tiles.

    Tiles whose number depends on the image count as `unknown` without its size.
    """
    names, tile = arguments.get("object"), check_tile(arguments.get("tile"))
    if tile is None:
        tiles = 0
    elif isinstance(tile, tuple):
        tiles = math.prod(tile)
    else:
        tiles = unknown if size is None else len(cut_tiles(size, tile, sight))
    return max(1, len(names) if isinstance(names, list) else 1) * (1 + tiles)


def check_parts(parts: int, config: ServerConfig) -> int:
    """Return the number of requests that a call makes of the engine; raises 422 over the limit."""
    # There are never more free places, or requests of a minute, than these.
    limit = min(config.max_parts, config.max_open, config.requests_per_minute or config.max_parts)
    if parts > limit:
        message = f"names and tiles make {parts} requests, over the limit of {limit}: ask for fewer"
        raise HttpError(422, message, code="over_limit", limit="max_parts")
    return parts


async def ask_model(model: ServedModel, call: Call) -> Mapping[str, Any]:
    """Return the skill's result, its text an async iterator if streamed; cancelling the task cancels the request."""
    result: Mapping[str, Any] = await getattr(model, f"a{call.skill}")(**_given(call))
    return result


def _given(call: Call) -> dict[str, Any]:
    """Return the arguments of the skill's method of `VisionModel`."""
    given: dict[str, Any] = {**call.arguments, **{name: getattr(call, name) for name in OPTIONS}}
    if call.skill == "chat":
        given["messages"] = [_with_images(one, call.images) for one in given["messages"]]
    else:
        given["image"] = call.image
    return given | {"stream": True} if call.stream else given


def image_places(arguments: Mapping[str, Any]) -> list[int]:
    """Return the number of the image in each place of a conversation."""
    parts = (part for message in arguments.get("messages", ()) for part in message["content"])
    return [part["image"] for part in parts if "image" in part]


def _with_images(message: Mapping[str, Any], images: Sequence[object]) -> dict[str, Any]:
    """Put images in the place of their numbers."""
    parts = message["content"]
    return {**message, "content": [one | {"image": images[one["image"]]} if "image" in one else one for one in parts]}


def bounded(call: Call, config: ServerConfig, model: ServedModel) -> Call:
    """Check a call and fill in what it leaves out; raises what the limits (422) or the model refuse it for."""
    skills = model.skills
    if ("query" if call.skill == "chat" else call.skill) not in skills:
        raise HttpError(422, f"this model cannot {call.skill}: it can {', '.join(skills)}", code="unsupported_skill")
    if call.image is None and call.skill not in ("query", "chat"):
        raise HttpError(422, f"{call.skill} needs an image: send image_url", code="missing_image")
    texts = {name: call.arguments.get(name) for name in ("object", "question")}
    if call.skill == "chat":
        parts = [part for message in call.arguments["messages"] for part in message["content"]]
        texts["conversation"] = "\n".join(part["text"] for part in parts if part["type"] == "text")
    for name, given in texts.items():
        for text in given if isinstance(given, list) else [given]:
            _check_text(name, text, config.max_prompt_characters)
    least = count_parts(call.arguments, unknown=2 * (call.arguments.get("tile") == "auto"))
    check_parts(least, config)
    settings = _bounded_settings(call.arguments.get("settings"), config)
    deadline_s = min(call.deadline_s or config.deadline_s, config.deadline_s)
    call = dataclasses.replace(call, arguments={**call.arguments, "settings": settings}, deadline_s=deadline_s)
    model.check_call(call.skill, **_given(call))
    return call


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

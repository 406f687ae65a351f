"""Conversations: messages as OpenAI's clients write them, with images in turns of the user.

```
[{"role": "system", "content": "Be brief."},
 {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "How many mugs?"}]},
 {"role": "assistant", "content": "Three."},
 {"role": "user", "content": "And plates?"}]
```
"""

import reprlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from photonlite.errors import ImageUrlError, PromptError
from photonlite.hints import did_you_mean
from photonlite.images.source import is_data_uri, is_url, source_key
from photonlite.request import Turn

MAX_TURNS: Final = 1024
"""Turns of a conversation, and parts of all its turns together."""

MAX_CHARACTERS: Final = 100_000
"""Characters of a conversation: more take long to encode; the context is checked later."""

DETAILS: Final = ("auto", "high")
"""Values of `detail` beside an image's URL that are taken: images are always read in full detail."""

IGNORED: Final = ("annotations", "parsed", "reasoning", "reasoning_content", "cache_control")
"""Fields that change no answer: notes on an earlier answer's text, its value, its reasoning, and when to cache."""

Message: TypeAlias = Mapping[str, Any]

_ROLES: Final[Mapping[str, Literal["system", "user", "assistant"]]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(frozen=True)
class Conversation:
    """Turns of text, and the images that stand in them, in their order."""

    turns: tuple[Turn, ...]
    images: tuple[Any, ...]


def read_messages(messages: Sequence[Message], *, urls_only: bool = False) -> Conversation:
    """Check messages and take out their images; raises a PromptError that names the message.

    A part is text, `{"type": "text", "text": ...}`, `{"type": "image", "image": ...}` with anything that stands for an
    image, or `{"type": "image_url", "image_url": {"url": ...}}` with a data URI or a URL; ImageUrlError for a path.
    Other fields are refused unless they change no answer: those that are None or an empty list, and `IGNORED`. With
    `urls_only`, for messages of strangers, images are data URIs and URLs.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise PromptError(
            f"messages is of type {type(messages).__name__}: give a list of messages with role and content"
        )
    if not 0 < len(messages) <= MAX_TURNS:
        raise PromptError(f"there are {len(messages)} messages: give 1 to {MAX_TURNS}")
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    if (parts := sum(len(one) for one in contents if isinstance(one, list | tuple))) > MAX_TURNS:
        raise PromptError(f"the messages have {parts} parts, over the limit of {MAX_TURNS}: leave out early ones")
    images: list[Any] = []
    kinds = ("text", "image_url") if urls_only else ("text", "image_url", "image")
    turns = tuple(_turn(message, f"message {place}", images, kinds) for place, message in enumerate(messages, 1))
    if turns[-1].role != "user":
        raise PromptError(f"the last message is the {turns[-1].role}'s: it must be the user's, with the question")
    if not any(part and part.strip() for part in turns[-1].parts):
        raise PromptError("the last message holds no text: ask something")
    if (size := sum(len(turn.text) for turn in turns)) > MAX_CHARACTERS:
        raise PromptError(
            f"the messages have {size} characters, over the limit of {MAX_CHARACTERS}: leave out early ones"
        )
    return Conversation(turns, tuple(images))


def flat_text(turns: Sequence[Turn]) -> str:
    """Return a conversation as one question: instructions, earlier turns such as `User: ...`, and the last text."""
    *earlier, last = turns
    instructions = "\n".join(turn.text for turn in earlier if turn.role == "system")
    spoken = "\n".join(f"{turn.role.title()}: {turn.text}" for turn in earlier if turn.role != "system" and turn.text)
    return "\n\n".join(block for block in (instructions, spoken, last.text) if block)


def unique_images(images: Sequence[Any]) -> tuple[Any, ...]:
    """Return each image once: clients send it again with every turn."""
    kept: dict[Hashable, Any] = {}
    for image in images:
        kept.setdefault(source_key(image), image)
    return tuple(kept.values())


def _turn(message: Message, where: str, images: list[Any], kinds: Sequence[str]) -> Turn:
    if not isinstance(message, Mapping):
        raise PromptError(f"{where} is of type {type(message).__name__}: give a dict with role and content")
    role = _ROLES.get(known) if isinstance(known := message.get("role"), str) else None
    if role is None:
        raise PromptError(f"{where} has the role {reprlib.repr(known)}: it is one of {', '.join(_ROLES)}")
    _check_fields(message, ("role", "content"), where)
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""  # clients hand back such a turn as they got it
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list | tuple):
        raise PromptError(f"the content of {where} is of type {type(content).__name__}: give text or a list of parts")
    found = len(images)
    texts = tuple(_part(part, where, images, kinds) for part in parts)
    if role != "user" and len(images) > found:
        raise PromptError(f"{where} is the {role}'s and holds an image: only turns of the user may, move it there")
    return Turn(role, texts)


def _part(part: object, where: str, images: list[Any], kinds: Sequence[str]) -> str | None:
    """Return the text of a part; None for an image, which is added to the list."""
    if isinstance(part, str):
        return part
    given: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    kind: Any = given.get("type")
    value = given.get(kind) if kind in kinds else None
    if kind == "image_url" and isinstance(value, Mapping):
        _check_fields(value, ("url", "detail"), where)
        if value.get("detail") not in (None, *DETAILS):
            raise PromptError(
                f"{where} has the detail {reprlib.repr(value['detail'])}: only {' or '.join(DETAILS)} is taken"
            )
        value = value.get("url")
    if value is None or (kind == "text" and not isinstance(value, str)):
        forms = " or ".join(f'{{"type": "{name}", "{name}": ...}}' for name in kinds)
        raise PromptError(f"{where} has the part {reprlib.repr(part):.80}: give {forms}")
    _check_fields(given, ("type", kind), where)
    if kind == "text":
        return str(value)
    if kind == "image_url" and not (isinstance(value, str) and (is_data_uri(value) or is_url(value))):
        advice = "" if "image" not in kinds else '; a path goes into {"type": "image", "image": ...}'
        raise ImageUrlError(f"{where} has the image_url {reprlib.repr(value)}: it takes data: and https: URLs{advice}")
    images.append(value)
    return None


def _check_fields(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise a PromptError for a field that would not be used."""
    for name, value in given.items():
        if name not in (*known, *IGNORED) and value is not None and not (isinstance(value, list) and not value):
            resize = ": resize the image instead" if str(name).endswith(("_pixels", "_height", "_width")) else ""
            unused = f"{str(name)[:60]!r}{did_you_mean(name, known)}, which is not used{resize}"
            raise PromptError(f"{where} has the field {unused}; the fields are {', '.join(known)}")

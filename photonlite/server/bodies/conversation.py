"""A conversation as one question about one image, which is what the model was trained for.

A single message of the user's is the question, as it is. Of several messages these blocks are, with an empty line
between them:

1. instructions: the texts of the roles "system" and "developer",
2. the earlier turns, one after the other, as `User: ...` and `Assistant: ...`,
3. the text of the last message, which must be the user's.

The parts of a message are joined by line ends. The image may stand in any of the user's messages; a client that sends
it again with every turn is understood.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from photonlite.server.errors import HttpError

INSTRUCTIONS: Final = ("system", "developer")
_SPEAKERS: Final = {"user": "User", "assistant": "Assistant"}
_ROLES: Final = (*INSTRUCTIONS, *_SPEAKERS)


@dataclass(frozen=True)
class Conversation:
    """What a list of messages comes to.

    Attributes:
        question: The text for the model.
        images: Where the images are, as they were given, each once.
    """

    question: str
    images: tuple[str, ...]


def read_conversation(messages: object) -> Conversation:
    """Turn messages into a question.

    Args:
        messages: As the request has them.

    Raises:
        HttpError: 422, they are not shaped like messages, or hold what the model cannot use.
    """
    if not isinstance(messages, list) or not messages:
        raise malformed("'messages' must be a list of at least one message")
    turns = [_read_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if turns[-1].role != "user":
        raise unusable(f"the last message is the {turns[-1].role}'s: it must be the user's, with the question")
    images = dict.fromkeys(image for turn in turns for image in turn.images)
    return Conversation(_flatten(turns), tuple(images))


@dataclass(frozen=True)
class _Turn:
    role: str
    text: str
    images: tuple[str, ...]


def _flatten(turns: Sequence[_Turn]) -> str:
    last = turns[-1]
    if not last.text:
        raise unusable("the last message holds no text: ask something about the image")
    instructions = [turn.text for turn in turns if turn.role in INSTRUCTIONS]
    earlier = [f"{_SPEAKERS[turn.role]}: {turn.text}" for turn in turns[:-1] if turn.role in _SPEAKERS and turn.text]
    return "\n\n".join(block for block in ("\n".join(instructions), "\n".join(earlier), last.text) if block)


def _read_turn(message: object, where: str) -> _Turn:
    if not isinstance(message, Mapping):
        raise malformed(f"{where} must be an object with 'role' and 'content'")
    role = message.get("role")
    if role not in _ROLES:
        raise unusable(f"{where} has the role {role!r:.40}: the roles are {', '.join(_ROLES)}")
    if message.get("tool_calls") or message.get("function_call"):
        raise unusable(f"{where} calls a tool: there are none, leave such messages out")
    content = message.get("content")
    if isinstance(content, str):
        return _Turn(role, content.strip(), ())
    if content is None and role == "assistant":  # an answer that was cut before its first word
        return _Turn(role, "", ())
    if not isinstance(content, list):
        raise malformed(f"{where}.content must be text or a list of parts")
    texts: list[str] = []
    images: list[str] = []
    for index, part in enumerate(content):
        _read_part(part, role, f"{where}.content[{index}]", texts, images)
    return _Turn(role, "\n".join(texts).strip(), tuple(images))


def _read_part(part: object, role: str, where: str, texts: list[str], images: list[str]) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise malformed(f"{where} must be an object with a 'type'")
    if kind == "text":
        texts.append(_text(part.get("text"), f"{where}.text"))
    elif kind == "image_url" and role == "user":
        images.append(_url(part.get("image_url"), f"{where}.image_url"))
    else:
        fine = "text and image_url" if role == "user" else "text"
        raise unusable(f"{where} is of the type {kind!r:.40}: the {role}'s parts may be {fine}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{where} must be text")
    return value


def _url(value: Any, where: str) -> str:
    """Read `{"url": "data:..."}`; how detailed the image is to be looked at is the model's own affair."""
    url = value.get("url") if isinstance(value, Mapping) else None
    if not isinstance(url, str):
        raise malformed(f"{where} must be an object with a 'url'")
    return url


def malformed(message: str) -> HttpError:
    """Give the error for a field that is missing or of another type."""
    return HttpError(422, message, code="invalid_field")


def unusable(message: str) -> HttpError:
    """Give the error for a value that is well shaped and cannot be used."""
    return HttpError(422, message, code="invalid_input")

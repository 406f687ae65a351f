"""The key of a request: requests with the same one share what a replica keeps of earlier requests."""

import hashlib
from collections.abc import Collection
from typing import Final, cast

from starlette.requests import Request

from photonlite.images.source import is_url
from photonlite.server.bodies.base import validate
from photonlite.server.bodies.chat import ChatCompletionRequest
from photonlite.server.bodies.reading import read_json_object, read_skill_request
from photonlite.server.calls import SKILLS
from photonlite.server.errors import HttpError
from photonlite.server.images import from_data_uri

_CHAT: Final = "/v1/chat/completions"
_PATHS: Final = {f"/v1/{skill}": skill for skill in SKILLS}


def affinity_key(request: Request, body: bytes, tenant: str | None, aliases: Collection[str] = ()) -> str | None:
    """Return a hash of the first image's bytes, the model and the tenant; None if nothing of the answer can be shared.

    A conversation without an image has one of its first turn in the image's place. A body that cannot be read has no
    key: the replica says what is wrong with it. Names in `aliases` mean the same as no name of a model.
    """
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    try:
        if path == _CHAT:
            asked = validate(ChatCompletionRequest, read_json_object(body))
            model, images, turn = asked.model, cast(list[str | bytes], asked.images), _first_turn(asked)
        elif path in _PATHS:
            read, images = read_skill_request(_PATHS[path], request, body)
            model, turn = read.model, None
        else:
            return None
        subject = _content(images[0]) if images else turn
    except HttpError:
        return None
    if subject is None:
        return None
    named = b"" if model is None or model in aliases else model.encode(errors="replace")
    digest = hashlib.sha256()
    for part in (subject, named, (tenant or "").encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _content(image: str | bytes) -> bytes:
    """Return an image's bytes, or a URL's, which stands for them."""
    if isinstance(image, str):
        return image.encode(errors="replace") if is_url(image) else from_data_uri(image)
    return image


def _first_turn(asked: ChatCompletionRequest) -> bytes:
    """Return the messages up to the user's first one: every turn of a conversation begins with them."""
    turns: list[str] = []
    for turn in asked.turns:
        turns.append(f"{turn.role}\n{turn.text}")
        if turn.role == "user":
            break
    return "\0".join(turns).encode(errors="replace")

"""What a request to one of Moondream's own routes asks for, in whichever of three forms it comes.

| Content-Type | image | fields |
|---|---|---|
| `application/json` | `image_url`: a data URI | beside it |
| `multipart/form-data` | the one file, or `image_url` | as text; those of `JSON_FIELDS` as JSON |
| `image/...`, `application/octet-stream` | the body | in the query string, the same way |

A field that is null counts as left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from starlette.requests import Request

from photonlite.hints import did_you_mean
from photonlite.server.backend import Skill
from photonlite.server.bodies.multipart import read_form
from photonlite.server.errors import HttpError

LENGTHS: Final = ("short", "normal", "long")

REQUIRED: Final[dict[Skill, str]] = {"query": "question", "detect": "object", "point": "object", "segment": "object"}
"""The field that a skill cannot do without."""

FIELDS: Final[dict[Skill, tuple[str, ...]]] = {
    "caption": ("length",),
    "query": ("question", "reasoning", "spatial_refs", "schema", "choices", "regex"),
    "detect": ("object",),
    "point": ("object", "spatial_refs"),
    "segment": ("object", "spatial_refs"),
}
"""What may be given beside `COMMON`."""

COMMON: Final = ("image_url", "settings", "model", "stream", "strict")
STREAMED: Final = ("caption", "query", "segment")
JSON_FIELDS: Final = ("settings", "spatial_refs", "schema", "choices")
"""Fields that only JSON can hold: of a form or a query string they are text that is JSON."""


@dataclass(frozen=True)
class Asked:
    """A request that has been read.

    Attributes:
        images: Images: bytes, or what `image_url` held.
        arguments: For the method of `VisionModel`.
        model: Which model is meant; None for the one that is served.
        stream: Whether the answer is wanted as it comes.
        strict: Whether an answer that a limit cut short is an error.
    """

    images: tuple[str | bytes, ...]
    arguments: dict[str, Any]
    model: str | None
    stream: bool
    strict: bool


def read_asked(skill: Skill, request: Request, body: bytes) -> Asked:
    """Read a request.

    Args:
        skill: Of the route.
        request: For its headers and query string.
        body: All of it.

    Raises:
        HttpError: 400 for what cannot be read, 415 for another Content-Type, 422 for a field that is unknown, missing
            or of another type.
    """
    files, fields = _read(request, body)
    known = (*COMMON, *FIELDS[skill])
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known)
            _unusable("unknown_field", f"the field {name[:40]!r} is unknown{hint}: {skill} takes {', '.join(known)}")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        _check(name, value)
    needed = REQUIRED.get(skill)
    if needed is not None and needed not in fields:
        _unusable("missing_field", f"the field {needed!r} is missing: {skill} needs it")
    stream = fields.pop("stream", False)
    if stream and skill not in STREAMED:
        _unusable("invalid_field", f"{skill} has nothing to stream: leave 'stream' out")
    strict, model = fields.pop("strict", False), fields.pop("model", None)
    linked = (fields.pop("image_url"),) if "image_url" in fields else ()
    return Asked((*files, *linked), fields, model, stream, strict)


def read_json(body: bytes) -> Any:
    """Read JSON: strictly, so without NaN.

    Raises:
        HttpError: 400.
    """
    try:
        return _parsed(body.decode())
    except ValueError as cause:
        reason = str(cause)[:200]
        raise HttpError(400, f"the body is not JSON that can be read: {reason}", code="invalid_json") from cause


def _read(request: Request, body: bytes) -> tuple[list[bytes], dict[str, Any]]:
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        value = read_json(body)
        if not isinstance(value, dict):
            raise HttpError(400, f"the body is of type {type(value).__name__}: send a JSON object", code="invalid_json")
        return [], value
    if kind == "multipart/form-data":
        files, texts = read_form(content_type, body)
        return files, _from_texts(texts)
    if kind.startswith("image/") or kind == "application/octet-stream" or not (kind or body):
        names = [name for name, _ in request.query_params.multi_items()]
        if len(names) != len(set(names)):
            raise HttpError(400, "the query string has a field twice", code="invalid_query")
        return [body] if body else [], _from_texts(dict(request.query_params))
    raise HttpError(
        415,
        f"Content-Type is {kind[:60]!r}: send application/json, multipart/form-data, or the image as image/...",
        code="unsupported_content_type",
    )


def _from_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: _from_text(name, text) for name, text in texts.items()}


def _from_text(name: str, text: str) -> Any:
    if name in ("stream", "reasoning", "strict"):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if name in JSON_FIELDS:
        try:
            return _parsed(text)
        except ValueError as cause:
            raise HttpError(422, f"the field {name!r} is not JSON", code="invalid_field") from cause
    return text


def _check(name: str, value: object) -> None:
    fits, wanted = _KINDS[name]
    if not fits(value):
        _unusable("invalid_field", f"the field {name!r} must be {wanted}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_places(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(place, list | dict) and _is_place(place) for place in value)


def _is_place(place: list[Any] | dict[str, Any]) -> bool:
    """Whether it is a point or a box: numbers, or an object as `detect` and `point` give them."""
    if isinstance(place, dict):
        names = ("x", "y") if "x" in place else ("x_min", "y_min", "x_max", "y_max")
        place = [place.get(name) for name in names]
    return len(place) in (2, 4) and all(type(number) in (int, float) and 0 <= number <= 1 for number in place)


_KINDS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "image_url": (_is_text, "text: data:image/jpeg;base64,..."),
    "object": (_is_text, "text"),
    "question": (_is_text, "text"),
    "model": (_is_text, "text"),
    "length": (lambda value: value in LENGTHS, f"one of {', '.join(LENGTHS)}"),
    "stream": (lambda value: isinstance(value, bool), "true or false"),
    "strict": (lambda value: isinstance(value, bool), "true or false"),
    "reasoning": (lambda value: isinstance(value, bool), "true or false"),
    "settings": (lambda value: isinstance(value, dict), "an object such as {\"temperature\": 0.5}"),
    "schema": (lambda value: isinstance(value, dict | str), "a JSON Schema: an object, or its text"),
    "choices": (_is_texts, "a list of texts"),
    "regex": (_is_text, "text: a pattern"),
    "spatial_refs": (
        _is_places,
        "a list of points [x, y] and boxes [x_min, y_min, x_max, y_max], from 0 to 1, or of points and objects as "
        "answers hold them",
    ),
}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError as cause:
        raise ValueError("it is nested too deeply") from cause


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice in an object: whoever checked the request before may have read the other one."""
    read = dict(pairs)
    if len(read) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise HttpError(400, f"the name {name[:40]!r} stands twice in an object of JSON", code="duplicate_name")
    return read


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unusable(code: str, message: str) -> NoReturn:
    raise HttpError(422, message, code=code)

"""Reads bodies, limited in size and time, and their fields in one of three forms.

| Content-Type | image | fields |
|---|---|---|
| `application/json` | `image_url`: a data URI | beside it |
| `multipart/form-data` | the one file, or `image_url` | as text, several names in turn; lists and the rest: JSON |
| `image/...`, `application/octet-stream` | the body | in the query string, the same way |
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

from starlette.requests import ClientDisconnect, Request

from photonlite.server.bodies.base import Body, Json, validate
from photonlite.server.bodies.multipart import read_form
from photonlite.server.bodies.skills import SKILL_BODIES, SkillRequest
from photonlite.server.calls import Skill
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError, client_left
from photonlite.server.limits.limiter import Hold, Permit

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}

MAX_VALUES: Final = 100_000  # of JSON: millions take seconds, for which the event loop stops, and gigabytes
_LIST: Final = re.compile(r"\s*\[(\s*\".*|.*\]\s*)", re.DOTALL)  # is meant as a list, unlike "[sic] sign"
_MOST_IMAGES: Final = 64  # in base64 that are left out of the count
_MOST_FIELDS: Final = 256  # of a query string
_MOST_DIGITS: Final = 500  # of an integer: the time to read one grows with the square of its digits

# The rest of such a body must not be read as the next request of the connection.
_CLOSE: Final = {"Connection": "close"}


async def read_body(request: Request, config: ServerConfig, permit: Permit) -> bytes:
    """Read the body, then count the request among open ones. Raises 400, 408, 413, 415, 429 and 499."""
    if request.query_params and media_type(request) in ("application/json", "multipart/form-data"):
        message = "the query string has fields, which go with an image as the body only: put them into the body"
        raise HttpError(400, message, code="invalid_query")
    with Hold(permit) as hold:
        body = await _receive(request, config, lambda size: hold.resize(2 * size))  # joining copies all
        hold.resize(len(body))
        hold.keep()
    permit.enter()
    return body


async def _receive(request: Request, config: ServerConfig, hold: Callable[[int], None]) -> bytes:
    """Receive the body; `hold` reserves memory for the bytes so far, or raises."""
    limit = config.max_body_bytes
    declared = _declared(request, limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(f"more than {limit}", limit)
                hold(size)
                chunks.append(chunk)
    except TimeoutError as cause:
        message = f"the body was not complete within {config.body_timeout_s:g} s"
        raise HttpError(408, message, code="body_timeout", headers=_CLOSE, limit="body_timeout_s") from cause
    except ClientDisconnect as cause:
        raise client_left() from cause
    if declared is not None and declared != size:
        message = f"the body has {size} bytes, but Content-Length says {declared}"
        raise HttpError(400, message, code="wrong_content_length", headers=_CLOSE)
    return b"".join(chunks)


def read_skill_request(skill: Skill, request: Request, body: bytes) -> tuple[SkillRequest, list[str | bytes]]:
    """Return the request of a skill's route and its images, files or `image_url`; raises 400, 415 and 422."""
    model = SKILL_BODIES[skill][0]
    files, fields = _read(model, request, body)
    read = validate(model, fields)
    return read, [*files, *([] if read.image_url is None else [read.image_url])]


def read_json_object(body: bytes) -> Json:
    """Read a JSON object, strictly: NaN and a name that stands twice are refused with 400."""
    try:
        value = _parse(body.decode())
    except ValueError as cause:
        reason = str(cause)[:200]
        raise HttpError(400, f"the body is not JSON that can be read: {reason}", code="invalid_json") from cause
    if not isinstance(value, dict):
        raise HttpError(400, f"the body is of type {type(value).__name__}: send a JSON object", code="invalid_json")
    return value


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class FormFields(NamedTuple):
    """Names of a body's fields, by how a form or a query string holds them; the others are text."""

    flags: tuple[str, ...]
    repeated: tuple[str, ...]  # text, or a list of texts by repetition
    json: tuple[str, ...]
    words: tuple[str, ...]  # those of `json` that may also be a word


@cache
def form_fields(model: type[Body]) -> FormFields:
    types: dict[str, set[str | None]] = {
        name: {one.get("type") for one in schema.get("anyOf", [schema])} - {"null"}
        for name, schema in model.model_json_schema()["properties"].items()
    }

    def of(*sought: set[str | None]) -> tuple[str, ...]:
        return tuple(name for name, kinds in types.items() if kinds in sought)

    flags, repeated, texts = of({"boolean"}), of({"string", "array"}), of({"string"})
    json = tuple(name for name in types if name not in {*flags, *repeated, *texts})
    return FormFields(flags, repeated, json, words=of({"string", "integer", "array"}))


def _read(model: type[Body], request: Request, body: bytes) -> tuple[list[bytes], Json]:
    kind = media_type(request)
    if kind == "application/json":
        return [], read_json_object(body)
    if kind == "multipart/form-data":
        files, texts = read_form(request.headers["content-type"], body, form_fields(model).repeated)
        return files, _from_texts(model, texts)
    if kind.startswith("image/") or kind == "application/octet-stream" or not (kind or body):
        if request.scope["query_string"].count(b"&") >= _MOST_FIELDS:
            message = f"the query string has more than {_MOST_FIELDS} fields: send them in the body"
            raise HttpError(400, message, code="invalid_query")
        texts = {}
        for name, text in request.query_params.multi_items():
            if name in texts and name not in form_fields(model).repeated:
                raise HttpError(400, "the query string has a field twice", code="invalid_query")
            texts.setdefault(name, []).append(text)
        return [body] if body else [], _from_texts(model, texts)
    raise HttpError(
        415,
        f"Content-Type is {kind[:60]!r}: send application/json, multipart/form-data, or the image as image/...",
        code="unsupported_content_type",
    )


def _from_texts(model: type[Body], texts: Mapping[str, list[str]]) -> Json:
    names = form_fields(model)
    fields: Json = {}
    for name, given in texts.items():
        fields[name] = given if len(given) > 1 else given[0]
        listed = name in names.repeated and len(given) == 1 and _LIST.fullmatch(given[0]) is not None
        if name in names.flags:
            fields[name] = _FLAGS.get(given[0].lower(), given[0])
        elif name in names.json or listed:
            try:
                fields[name] = _parse(given[0])
            except ValueError as cause:
                if name in names.words:
                    continue
                raise HttpError(422, f"the field {name!r} is not JSON", code="invalid_field") from cause
    return fields


def _parse(text: str) -> Any:
    text = text.removeprefix("\ufeff")  # a byte order mark
    if _most_values(text) > MAX_VALUES:
        message = f"the JSON has over {MAX_VALUES:,} commas and brackets, the limit: send fewer values"
        raise HttpError(422, message, code="too_many_values")
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_integer, object_pairs_hook=_object)
    except RecursionError as cause:
        raise ValueError("it is nested too deeply") from cause


def _most_values(text: str) -> int:
    """Return how many values a text of JSON holds at most. Base64 of images is skipped: counting takes time."""
    ends = [0]
    while len(ends) < 2 * _MOST_IMAGES and (begin := text.find(";base64,", ends[-1])) >= 0:
        ends += [begin, max(begin, text.find('"', begin))]  # a semicolon stands in strings only
    parts = zip(ends[::2], [*ends[1::2], len(text)], strict=True)
    return 1 + sum(text.count(sign, *part) for part in parts for sign in ",[{")


def _object(pairs: list[tuple[str, Any]]) -> Json:
    """Refuse a name that stands twice in an object: a proxy that checked the request may have read the other one."""
    read = dict(pairs)
    if len(read) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise HttpError(400, f"the name {name[:40]!r} stands twice in an object of JSON", code="duplicate_name")
    return read


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer has more than {_MOST_DIGITS} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _declared(request: Request, limit: int) -> int | None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"the body is compressed ({encoding[:40]!r}): send it as it is"
        raise HttpError(415, message, code="unsupported_encoding")
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HttpError(400, "Content-Length is not a number of bytes", code="wrong_content_length", headers=_CLOSE)
    if int(text) > limit:
        raise _too_large(text, limit)
    return int(text)


def _too_large(size: str, limit: int) -> HttpError:
    message = f"the body has {size} bytes, over the limit of {limit}: shrink the image"
    return HttpError(413, message, code="body_too_large", limit="max_body_bytes")

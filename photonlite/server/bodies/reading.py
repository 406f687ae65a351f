"""Reads the body of a request: so many bytes, in so much time, and as many as Content-Length says."""

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request

from photonlite.server.config import ServerConfig
from photonlite.server.errors import CLIENT_CLOSED, HttpError

# The rest of such a body must not be read as the next request of the connection.
_CLOSE = {"Connection": "close"}


async def read_body(request: Request, config: ServerConfig, charge: Callable[[int], None]) -> bytes:
    """Read the whole body; `charge` is told of bytes as they come, and raises where there is no memory for them.

    Raises:
        HttpError: 413 over the limit, 400 where it is shorter or longer than announced, 408 where it takes too long,
            415 where it is compressed, 499 where the client goes away.
    """
    declared = _declared(request, config.max_body_bytes)
    try:
        async with asyncio.timeout(config.body_timeout_s):
            data = await _read(request, config.max_body_bytes, charge)
    except TimeoutError as cause:
        message = f"the body was not complete within {config.body_timeout_s:g} s"
        raise HttpError(408, message, code="body_timeout", headers=_CLOSE, limit="body_timeout_s") from cause
    except ClientDisconnect as cause:
        raise HttpError(CLIENT_CLOSED, "the client went away", code="client_closed") from cause
    if declared is not None and declared != len(data):
        message = f"the body has {len(data)} bytes, but Content-Length says {declared}"
        raise HttpError(400, message, code="wrong_content_length", headers=_CLOSE)
    return data


async def _read(request: Request, limit: int, charge: Callable[[int], None]) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(f"more than {limit}", limit)
        charge(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


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

"""Tokens of a request, noted where it is answered and read where it is logged and counted."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from photonlite.server.transport.disconnect import WatchedStream


def note_result(connection: HTTPConnection | None, result: Mapping[str, Any]) -> None:
    """Add the tokens of an answer to those of a connection's request."""
    if connection is not None:
        state = connection.scope.setdefault("state", {})
        state["tokens"] = _add(state.get("tokens", (0, 0)), result)


def note_stream(connection: HTTPConnection | None, stream: WatchedStream) -> None:
    """Note a stream, whose tokens are known at its end."""
    if connection is not None:
        connection.scope.setdefault("state", {})["stream"] = stream


def tokens_of(scope: Scope) -> tuple[int, int]:
    """Return how many tokens the prompts and the answers of a request had."""
    state = scope.get("state", {})
    tokens: tuple[int, int] = state.get("tokens", (0, 0))
    stream: WatchedStream | None = state.get("stream")
    return tokens if stream is None else _add(tokens, stream.result)


def _add(tokens: tuple[int, int], result: Mapping[str, Any]) -> tuple[int, int]:
    metrics = getattr(result, "metrics", None)
    return tokens if metrics is None else (tokens[0] + metrics.prompt_tokens, tokens[1] + metrics.output_tokens)

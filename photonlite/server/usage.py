"""How many tokens a request took, noted where it is answered and read where it is logged and counted."""

from collections.abc import Mapping
from typing import Any, Protocol

from starlette.requests import HTTPConnection
from starlette.types import Scope


class Answering(Protocol):
    """A stream, whose result has its metrics once it has ended."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The answer."""
        ...


def note_result(connection: HTTPConnection | None, result: Mapping[str, Any]) -> None:
    """Note the tokens of an answer to one of a connection's requests."""
    if connection is not None:
        state = connection.scope.setdefault("state", {})
        state["tokens"] = _sum(state.get("tokens", (0, 0)), result)


def note_stream(connection: HTTPConnection | None, stream: Answering) -> None:
    """Note that an answer is streamed: what it takes is known at its end."""
    if connection is not None:
        connection.scope.setdefault("state", {})["stream"] = stream


def tokens_of(scope: Scope) -> tuple[int, int]:
    """Return how many tokens the prompts and the answers of a request had."""
    state = scope.get("state", {})
    tokens: tuple[int, int] = state.get("tokens", (0, 0))
    stream: Answering | None = state.get("stream")
    return tokens if stream is None else _sum(tokens, stream.result)


def _sum(tokens: tuple[int, int], result: Mapping[str, Any]) -> tuple[int, int]:
    metrics = getattr(result, "metrics", None)
    if metrics is None:
        return tokens
    return tokens[0] + metrics.prompt_tokens, tokens[1] + metrics.output_tokens

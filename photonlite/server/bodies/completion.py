"""The shapes of answers of the OpenAI interface, as JSON values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from photonlite.results import Metrics


@dataclass(frozen=True)
class Heading:
    """What a completion and every chunk of it begin with.

    Attributes:
        id: Of the completion.
        created: Seconds since 1970.
        model: Its name.
        counts: Whether its chunks have a place for the count of tokens, which only the last one fills.
    """

    id: str
    created: int
    model: str
    counts: bool = False

    def completion(self, text: str, finish_reason: str | None, metrics: Metrics | None) -> dict[str, Any]:
        """Give a whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(finish_reason)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(metrics)}

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """Give a piece of an answer, or with a reason for its end, the last one."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self.counts else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def end(self, finish_reason: str | None) -> dict[str, Any]:
        """Give the chunk that says why the answer ended."""
        return self.chunk({}, _reason(finish_reason))

    def usage_chunk(self, metrics: Metrics | None) -> dict[str, Any]:
        """Give the chunk behind the last piece, which counts tokens."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(metrics)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(metrics: Metrics | None) -> dict[str, int]:
    """Count tokens; those of an image belong to the prompt."""
    prompt, output = (metrics.prompt_tokens, metrics.output_tokens) if metrics else (0, 0)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def model(name: str, created: int) -> dict[str, Any]:
    """Describe a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "photonlite"}


def _reason(finish_reason: str | None) -> str:
    """Put an engine's reason into OpenAI's words, of which there are two that can happen here."""
    return "length" if finish_reason == "length" else "stop"

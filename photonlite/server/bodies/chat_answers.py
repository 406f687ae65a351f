"""What `/v1/chat/completions` and `/v1/models` answer, as OpenAI's own clients read it."""

from typing import Literal

from pydantic import BaseModel, Field

from photonlite.results import Metrics
from photonlite.server.bodies.base import Count


class Usage(BaseModel):
    prompt_tokens: Count = Field(description="Those of the image among them.")
    completion_tokens: Count
    total_tokens: Count

    @classmethod
    def of(cls, metrics: Metrics | None) -> "Usage":
        prompt, output = (metrics.prompt_tokens, metrics.output_tokens) if metrics else (0, 0)
        return cls(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)


class ChatAnswer(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: Literal[0] = 0
    message: ChatAnswer
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChunkChoice(BaseModel):
    index: Literal[0] = 0
    delta: dict[str, str] = Field(description="What it adds to the message: `role` or `content`.")
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: Count = Field(description="Seconds since 1970.")
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatCompletionChunk(BaseModel):
    """A piece of a streamed answer. With `include_usage` the last one has no choices, but usage."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: Count = Field(description="Seconds since 1970.")
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: Count
    owned_by: str = "photonlite"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]

"""The OpenAI interface in the OpenAPI document."""

from typing import Final

from photonlite.server import schema_parts as parts
from photonlite.server.config import ServerConfig
from photonlite.server.openai_messages import INSTRUCTIONS
from photonlite.server.openai_request import IGNORED, NEUTRAL
from photonlite.server.schema_parts import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    UNIT,
    Json,
    array,
    described,
    nullable,
    record,
    ref,
)

_REASON: Final[Json] = {"type": "string", "enum": ["stop", "length"]}


def paths() -> Json:
    """Give the paths of the interface."""
    return {
        "/v1/chat/completions": {"post": _chat()},
        "/v1/models": {
            "get": {
                "operationId": "list_models",
                "tags": ["OpenAI"],
                "summary": "List the model that is served",
                "responses": {
                    "200": parts.response("The list.", parts.json_content(ref("ModelList"))),
                    **parts.errors(*parts.ADMISSION),
                },
            }
        },
        "/v1/models/{model}": {
            "get": {
                "operationId": "get_model",
                "tags": ["OpenAI"],
                "summary": "Describe the model that is served",
                "parameters": [
                    {
                        "name": "model",
                        "in": "path",
                        "required": True,
                        "description": "Its name, as the list gives it.",
                        "schema": {**TEXT, "minLength": 1},
                    }
                ],
                "responses": {
                    "200": parts.response("The model.", parts.json_content(ref("Model"))),
                    **parts.errors(404, *parts.ADMISSION),
                },
            }
        },
    }


def _chat() -> Json:
    example = {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "How many bananas are there?"},
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,..."}},
                ],
            }
        ]
    }
    return {
        "operationId": "create_chat_completion",
        "tags": ["OpenAI"],
        "summary": "Answer a conversation about at most one picture",
        "description": (
            "The model was trained on single questions about one picture, so a conversation becomes one question. One "
            "message of the user's is asked as it is. Earlier turns go before the last one's text as lines `User: ...` "
            "and `Assistant: ...`, and the instructions of system and developer messages before everything. The "
            "checkpoint decides what it makes of them. Unknown parameters are refused. `temperature` is 0 unless given."
        ),
        "requestBody": {"required": True, "content": parts.json_content(ref("ChatCompletionRequest"), example)},
        "responses": {
            "200": parts.response(
                "The answer, or with `stream` its pieces as server-sent events.",
                {
                    **parts.json_content(ref("ChatCompletion")),
                    **parts.event_content("ChatCompletionChunk", "Error", end="[DONE]"),
                },
            ),
            **parts.errors(404, *parts.ANSWERING),
        },
    }


def schemas(config: ServerConfig) -> Json:
    """Give the schemas of the interface's bodies."""
    return {
        "ChatCompletionRequest": _request(config),
        "ChatMessage": {
            "oneOf": [ref("ChatUserMessage"), ref("ChatAssistantMessage"), ref("ChatInstructions")],
            "description": "One turn. The last one must be the user's, and hold text.",
        },
        "ChatUserMessage": _message(["user"], [TEXT, array({"oneOf": [ref("ChatTextPart"), ref("ChatImagePart")]})]),
        "ChatAssistantMessage": _message(["assistant"], [TEXT, array(ref("ChatTextPart")), {"type": "null"}]),
        "ChatInstructions": _message(list(INSTRUCTIONS), [TEXT, array(ref("ChatTextPart"))]),
        "ChatTextPart": record({"type": {"const": "text"}, "text": TEXT}),
        "ChatImagePart": record(
            {
                "type": {"const": "image_url"},
                "image_url": record(
                    {
                        "url": described(TEXT, "A data URI with base64, or a URL of a host that the server allows."),
                        "detail": described(TEXT, "Ignored."),
                    },
                    optional=["detail"],
                ),
            },
            description="A picture, in a message of the user's.",
        ),
        "ChatCompletion": record(
            {
                **_heading("chat.completion"),
                "choices": array(
                    record(
                        {
                            "index": {"const": 0},
                            "message": record(
                                {"role": {"const": "assistant"}, "content": TEXT, "refusal": {"type": "null"}}
                            ),
                            "logprobs": {"type": "null"},
                            "finish_reason": _REASON,
                        }
                    ),
                    minItems=1,
                    maxItems=1,
                ),
                "usage": ref("Usage"),
            }
        ),
        "ChatCompletionChunk": record(
            {
                **_heading("chat.completion.chunk"),
                "choices": array(
                    record(
                        {
                            "index": {"const": 0},
                            "delta": record({"role": TEXT, "content": TEXT}, optional=["role", "content"]),
                            "logprobs": {"type": "null"},
                            "finish_reason": nullable(_REASON),
                        }
                    ),
                    maxItems=1,
                ),
                "usage": nullable(ref("Usage")),
            },
            optional=["usage"],
            description="A piece of a streamed answer. With `include_usage` the last one has no choices, but usage.",
        ),
        "Usage": record(
            {
                "prompt_tokens": described(COUNT, "Those of the picture among them."),
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
            }
        ),
        "Model": record(
            {"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT},
        ),
        "ModelList": record({"object": {"const": "list"}, "data": array(ref("Model"))}),
    }


def _message(roles: list[str], contents: list[Json]) -> Json:
    return record({"role": {"type": "string", "enum": roles}, "content": {"anyOf": contents}})


def _heading(kind: str) -> Json:
    return {
        "id": TEXT,
        "object": {"const": kind},
        "created": described(COUNT, "Seconds since 1970."),
        "model": TEXT,
    }


def _request(config: ServerConfig) -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": config.max_tokens}
    stop = {"anyOf": [{**TEXT, "minLength": 1}, array({**TEXT, "minLength": 1}, maxItems=4), {"type": "null"}]}
    neutral = "Taken with a value that changes nothing, refused with any other."
    properties: Json = {
        "messages": array(ref("ChatMessage"), minItems=1),
        "model": described(nullable(TEXT), "The model's name; the one that is served unless given."),
        "stream": described(nullable(FLAG), "Whether to send the answer as it comes."),
        "stream_options": nullable(
            record(
                {"include_usage": nullable(FLAG), "include_obfuscation": described(nullable(FLAG), "Ignored.")},
                optional=["include_usage", "include_obfuscation"],
                closed=True,
                description="With `stream` only.",
            )
        ),
        "max_completion_tokens": described(nullable(limit), "Tokens of the answer at most."),
        "max_tokens": described(nullable(limit), "An older name of the same; give one of them."),
        "temperature": described(nullable({**NUMBER, "minimum": 0}), "0 takes the likeliest token every time."),
        "top_p": described(nullable(UNIT), "Sampling considers the likeliest up to this total probability."),
        "seed": described(nullable({**COUNT, "maximum": 2**63 - 1}), "Makes samples repeatable."),
        "stop": described(stop, "Sequences before which the answer ends."),
        **{name: described({"enum": [*values, None]}, neutral) for name, values in NEUTRAL.items()},
        **{name: {"description": "Ignored."} for name in IGNORED},
    }
    return record(properties, optional=[name for name in properties if name != "messages"], closed=True)

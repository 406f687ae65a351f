"""The OpenAI interface in the OpenAPI document."""

from typing import Final

from photonlite.server.bodies import schema_chat
from photonlite.server.bodies import schema_parts as parts
from photonlite.server.bodies.schema_parts import COUNT, TEXT, Json, array, described, nullable, record, ref
from photonlite.server.config import ServerConfig

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
        "summary": "Answer a conversation about at most one image",
        "description": (
            "The model was trained on single questions about one image, so a conversation becomes one question. One "
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
        **schema_chat.schemas(config),
        "ChatCompletion": _completion(),
        "ChatCompletionChunk": _chunk(),
        "Usage": record(
            {
                "prompt_tokens": described(COUNT, "Those of the image among them."),
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
            }
        ),
        "Model": record({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT}),
        "ModelList": record({"object": {"const": "list"}, "data": array(ref("Model"))}),
    }


def _completion() -> Json:
    message = record({"role": {"const": "assistant"}, "content": TEXT, "refusal": {"type": "null"}})
    choice = {"index": {"const": 0}, "message": message, "logprobs": {"type": "null"}, "finish_reason": _REASON}
    choices = array(record(choice), minItems=1, maxItems=1)
    return record({**_heading("chat.completion"), "choices": choices, "usage": ref("Usage")})


def _chunk() -> Json:
    delta = record({"role": TEXT, "content": TEXT}, optional=["role", "content"])
    choice = {"index": {"const": 0}, "delta": delta, "logprobs": {"type": "null"}, "finish_reason": nullable(_REASON)}
    choices = array(record(choice), maxItems=1)
    return record(
        {**_heading("chat.completion.chunk"), "choices": choices, "usage": nullable(ref("Usage"))},
        optional=["usage"],
        description="A piece of a streamed answer. With `include_usage` the last one has no choices, but usage.",
    )


def _heading(kind: str) -> Json:
    return {
        "id": TEXT,
        "object": {"const": kind},
        "created": described(COUNT, "Seconds since 1970."),
        "model": TEXT,
    }

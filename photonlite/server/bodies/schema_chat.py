"""What is sent to `/v1/chat/completions`, in the OpenAPI document."""

from typing import Final

from photonlite.grammar.decoding.choices import MAX_CHOICES
from photonlite.server.bodies.chat import IGNORED, NEUTRAL
from photonlite.server.bodies.conversation import INSTRUCTIONS
from photonlite.server.bodies.schema_parts import (
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
from photonlite.server.config import ServerConfig

_NEUTRAL: Final = "Taken with a value that changes nothing, refused with any other."


def schemas(config: ServerConfig) -> Json:
    """Give the schemas of a request."""
    return {"ChatCompletionRequest": _request(config), **_messages(), **_formats()}


def _messages() -> Json:
    text = array(ref("ChatTextPart"))
    url = described(TEXT, "A data URI with base64, or a URL of a host that the server allows.")
    image = record({"url": url, "detail": described(TEXT, "Ignored.")}, optional=["detail"])
    return {
        "ChatMessage": {
            "oneOf": [ref("ChatUserMessage"), ref("ChatAssistantMessage"), ref("ChatInstructions")],
            "description": "One turn. The last one must be the user's, and hold text.",
        },
        "ChatUserMessage": _message(["user"], [TEXT, array({"oneOf": [ref("ChatTextPart"), ref("ChatImagePart")]})]),
        "ChatAssistantMessage": _message(["assistant"], [TEXT, text, {"type": "null"}]),
        "ChatInstructions": _message(list(INSTRUCTIONS), [TEXT, text]),
        "ChatTextPart": record({"type": {"const": "text"}, "text": TEXT}),
        "ChatImagePart": record(
            {"type": {"const": "image_url"}, "image_url": image},
            description="An image, in a message of the user's.",
        ),
    }


def _message(roles: list[str], contents: list[Json]) -> Json:
    return record({"role": {"type": "string", "enum": roles}, "content": {"anyOf": contents}})


def _formats() -> Json:
    """Describe what an answer can be held to."""
    named = {
        "name": TEXT,
        "description": TEXT,
        "schema": {"type": "object"},
        "strict": described(nullable(FLAG), "The schema is always kept to."),
    }
    inner = record(named, optional=["name", "description", "strict"], closed=True)
    structures = {
        "json": {"anyOf": [{"type": "object"}, TEXT, {"type": "null"}]},
        "json_object": nullable(FLAG),
        "regex": nullable(TEXT),
        "choice": nullable(array(TEXT, minItems=1, maxItems=MAX_CHOICES)),
    }
    return {
        "ChatResponseFormat": {
            "oneOf": [
                record({"type": {"enum": ["text", "json_object"]}}, closed=True),
                record({"type": {"const": "json_schema"}, "json_schema": inner}, closed=True),
            ],
        },
        "ChatStructuredOutputs": record(
            structures, optional=list(structures), closed=True, description="vLLM's parameter; one of its fields."
        ),
    }


def _request(config: ServerConfig) -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": config.max_tokens}
    stop = {"anyOf": [{**TEXT, "minLength": 1}, array({**TEXT, "minLength": 1}, maxItems=4), {"type": "null"}]}
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
        "response_format": nullable(ref("ChatResponseFormat")),
        "structured_outputs": nullable(ref("ChatStructuredOutputs")),
        **{name: described({"enum": [*values, None]}, _NEUTRAL) for name, values in NEUTRAL.items()},
        **{name: {"description": "Ignored."} for name in IGNORED},
    }
    return record(properties, optional=[name for name in properties if name != "messages"], closed=True)

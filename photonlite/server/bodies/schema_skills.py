"""Moondream's interface in the OpenAPI document: one path for each skill."""

from typing import Any, Final

from photonlite.grammar.decoding.choices import MAX_CHOICES
from photonlite.server.backend import Skill
from photonlite.server.bodies import schema_parts as parts
from photonlite.server.bodies.parsing import FIELDS, JSON_FIELDS, LENGTHS, REQUIRED, STREAMED
from photonlite.server.bodies.schema_parts import (
    COUNT,
    FLAG,
    NUMBER,
    SECONDS,
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
from photonlite.skills.base import MAX_OBJECT_CHARACTERS, MAX_QUESTION_CHARACTERS

_OPTIONAL: Final = ("text", "scores", "reasoning")
_SUMMARIES: Final[dict[Skill, str]] = {
    "caption": "Describe an image",
    "query": "Answer a question, about an image or without one",
    "detect": "Find every instance of an object: boxes",
    "point": "Point at every instance of an object",
    "segment": "Draw the outline of an object",
}
_EXAMPLES: Final[dict[Skill, Json]] = {
    "caption": {"length": "short"},
    "query": {"question": "How many bananas are there?"},
    "detect": {"object": "banana"},
    "point": {"object": "banana"},
    "segment": {"object": "banana"},
}
MEDIA_TYPES: Final = (
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/tiff",
    "image/avif",
    "image/x-portable-pixmap",
    "application/octet-stream",
)


def paths(config: ServerConfig) -> Json:
    """Give the paths of the interface."""
    return {f"/v1/{skill}": {"post": _skill(skill, config)} for skill in _SUMMARIES}


def _skill(skill: Skill, config: ServerConfig) -> Json:
    name = skill.capitalize()
    answer = parts.json_content(ref(f"{name}Response"))
    if skill in STREAMED:
        answer |= parts.event_content("OutlineEvent" if skill == "segment" else "TextEvent", "Error")
    return {
        "operationId": skill,
        "tags": ["Skills"],
        "summary": _SUMMARIES[skill],
        "description": (
            "The image comes as a data URI in JSON, as a file of a form, or as the whole body with the other fields "
            "in the query string. In a form or a query string these are JSON: "
            f"{', '.join(f'`{name}`' for name in JSON_FIELDS)}."
        ),
        "parameters": _query_string(skill, config),
        "requestBody": {"required": True, "content": _bodies(skill, config)},
        "responses": {"200": parts.response("The answer.", answer), **parts.errors(*parts.ANSWERING, 404)},
    }


def _bodies(skill: Skill, config: ServerConfig) -> Json:
    name = skill.capitalize()
    image = {"image_url": "data:image/jpeg;base64,..."}
    raw = {media_type: {"schema": described(TEXT, "The bytes of the file.")} for media_type in MEDIA_TYPES}
    return {
        **parts.json_content(ref(f"{name}Request"), {**image, **_EXAMPLES[skill]}),
        "multipart/form-data": {"schema": ref(f"{name}Form")},
        **raw,
    }


def _query_string(skill: Skill, config: ServerConfig) -> list[Json]:
    """Describe the fields beside an image that is the whole body; JSON bodies and forms carry them themselves."""
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in _flat(_fields(skill, config)).items()
    ]


def schemas(config: ServerConfig) -> Json:
    """Give the schemas of the interface's bodies."""
    requests: dict[str, Json] = {}
    for skill in _SUMMARIES:
        name, fields = skill.capitalize(), _fields(skill, config)
        image = {"image_url": described(TEXT, "A data URI in base64, or a URL of a host that the server allows.")}
        file = {"image": described({**TEXT, "format": "binary"}, "The file; its field may have any name.")}
        optional = [field for field in fields if field != REQUIRED.get(skill)]
        without = ["image", "image_url"] if skill == "query" else []
        nulls = {field: nullable(schema) if field in optional else schema for field, schema in fields.items()}
        requests[f"{name}Request"] = record({**image, **nulls}, optional=optional + without, closed=True)
        requests[f"{name}Form"] = record({**file, **_flat(fields)}, optional=optional + without)
    return {**requests, **_results(), "Settings": _settings(config), "Metrics": _metrics()}


def _outcome() -> dict[str, Json]:
    return {
        "request_id": TEXT,
        "metrics": nullable(ref("Metrics")),
        "finish_reason": nullable({"type": "string", "enum": ["stop", "length", "max_objects"]}),
        "truncated": described(nullable(FLAG), "Whether a limit cut the answer short."),
    }


def _fields(skill: Skill, config: ServerConfig) -> dict[str, Json]:
    question, thing = (
        {**TEXT, "minLength": 1, "maxLength": min(limit, config.max_prompt_characters)}
        for limit in (MAX_QUESTION_CHARACTERS, MAX_OBJECT_CHARACTERS)
    )
    own: dict[Skill, dict[str, Json]] = {
        "caption": {"length": described({**TEXT, "enum": list(LENGTHS), "default": "normal"}, "How much to say.")},
        "query": {
            "question": described(question, "What to answer."),
            "reasoning": described({**FLAG, "default": False}, "Whether the model writes down its reasoning first."),
            **_forms(),
        },
        "detect": {"object": described(thing, "What to find.")},
    }
    own["point"] = own["segment"] = own["detect"]
    places = described(ref("SpatialRefs"), "Places that the words are about.")
    refs = {"spatial_refs": places} if "spatial_refs" in FIELDS[skill] else {}
    streamed = described({**FLAG, "default": False}, "Whether to send the answer as it comes.")
    stream = {"stream": streamed if skill in STREAMED else described({"const": False}, "There is nothing to stream.")}
    model = described(TEXT, "The model's name; the one that is served unless given.")
    strict = described({**FLAG, "default": False}, "Whether an answer that a limit cut short is an error (422).")
    settings = described(ref("Settings"), "See there.")
    return {**own[skill], **refs, **stream, "settings": settings, "strict": strict, "model": model}


def _flat(fields: dict[str, Json]) -> dict[str, Json]:
    """Write what only JSON can hold as text that is JSON."""
    return {name: described(TEXT, "JSON.") if name in JSON_FIELDS else schema for name, schema in fields.items()}


def _forms() -> dict[str, Json]:
    """Describe what an answer can be held to."""
    schema = {"anyOf": [{"type": "object"}, TEXT]}
    return {
        "schema": described(
            schema,
            "A JSON Schema that the answer keeps to; a keyword that could not be enforced is refused by name. "
            'Objects of the format "box" or "point" are drawn by the model itself.',
        ),
        "choices": described(array(TEXT, minItems=1, maxItems=MAX_CHOICES), "The texts to choose from."),
        "regex": described(TEXT, "A pattern that the whole answer matches."),
    }


def _results() -> Json:
    box = {"x_min": UNIT, "y_min": UNIT, "x_max": UNIT, "y_max": UNIT}
    label = {"label": TEXT, "score": described(UNIT, "How sure the model was.")}
    reasoning = record(
        {
            "text": TEXT,
            "grounding": array(record({"start_idx": COUNT, "end_idx": COUNT, "points": array(array(UNIT))})),
        }
    )
    path = described(TEXT, "SVG, relative to the box.")
    segment = {"path": path, "bbox": record(box), "polygon": array(array(NUMBER))}
    results: dict[str, dict[str, Json]] = {
        "Caption": {"caption": TEXT},
        "Query": {
            "answer": {"description": "Text; with `schema` the value."},
            "text": described(TEXT, "With `schema` only: the JSON of the answer."),
            "scores": described(
                {"type": "object", "additionalProperties": UNIT}, "With `choices` only: how probable each was."
            ),
            "reasoning": described(reasoning, "With `reasoning` only."),
        },
        "Detect": {"objects": array(record({**box, **label}))},
        "Point": {"points": array(record({"x": UNIT, "y": UNIT, **label}))},
        "Segment": {
            "segments": array(record({**segment, **label})),
            "path": described(TEXT, "Of the first segment; empty where there is none."),
            "bbox": described(nullable(record(box)), "Of the first segment; null where there is none."),
        },
    }
    pair, four = (array(UNIT, minItems=size, maxItems=size) for size in (2, 4))
    return {
        "SpatialRefs": array(
            {"anyOf": [pair, four, record({"x": UNIT, "y": UNIT}), record(box)]},
            description="Points x, y; boxes x_min, y_min, x_max, y_max; or objects with these names, as answers hold.",
        ),
        **{f"{name}Response": record({**own, **_outcome()}, optional=_OPTIONAL) for name, own in results.items()},
        "TextEvent": record(
            {"chunk": TEXT, "completed": FLAG, "reasoning": reasoning, **_outcome()},
            optional=["reasoning", *_outcome()],
            description="A piece of text; the last event is completed, and says how the answer ended.",
        ),
        "OutlineEvent": record(
            {
                "type": {"enum": ["bbox", "path_delta", "final"]},
                "bbox": nullable(record(box)),
                "chunk": described(TEXT, "A piece of the path."),
                "path": TEXT,
                "completed": FLAG,
                **results["Segment"],
                **_outcome(),
            },
            optional=["bbox", "chunk", "completed", *results["Segment"], *_outcome()],
            description="The box, the path, and at the end everything.",
        ),
    }


def _settings(config: ServerConfig) -> Json:
    properties: dict[str, Any] = {
        "temperature": described({**NUMBER, "minimum": 0, "default": 0}, "0 takes the likeliest token every time."),
        "top_p": described({**UNIT, "default": 1}, "Sampling considers the likeliest up to this total probability."),
        "max_tokens": described(_up_to(config.max_tokens), "Tokens of a text or an outline at most."),
        "max_objects": described(_up_to(config.max_objects), "Boxes or points at most."),
        "seed": described(nullable({**COUNT, "maximum": 2**63 - 1}), "Makes samples repeatable."),
    }
    return record(properties, optional=list(properties), closed=True)


def _up_to(limit: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": limit}


def _metrics() -> Json:
    return record(
        {
            "preprocess_s": SECONDS,
            "encode_s": SECONDS,
            "prefill_s": SECONDS,
            "decode_s": SECONDS,
            "prompt_tokens": COUNT,
            "output_tokens": COUNT,
            "time_to_first_token_s": SECONDS,
            "queue_s": SECONDS,
        }
    )

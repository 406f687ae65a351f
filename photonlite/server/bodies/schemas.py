"""The schemas of all bodies for the OpenAPI document: what pydantic says about the models, with the server's limits."""

import re
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from photonlite.results import Metrics
from photonlite.server.bodies import chat
from photonlite.server.bodies.adapters import AdapterEntry, AdapterList, AdapterRequest
from photonlite.server.bodies.base import Json
from photonlite.server.bodies.reading import form_fields
from photonlite.server.bodies.skills import SKILL_BODIES
from photonlite.server.config import ServerConfig
from photonlite.skills.base import MAX_OBJECT_CHARACTERS, MAX_QUESTION_CHARACTERS


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="What was wrong, which limit it met, and what to do.")
    type: str = Field(description="The class of error.")
    code: str = Field(description="What exactly it was, as a word for programs.")


class Error(BaseModel):
    """A request that ended without its answer."""

    error: ErrorBody


class Status(BaseModel):
    """How the server stands."""

    status: str = Field(description="alive, dead, ready or unavailable.")
    reason: str | None = Field(None, description="Why it is dead or unavailable.")
    model: str | None = Field(None, description="Name of the model that is ready.")


def form_name(request: type[BaseModel]) -> str:
    return request.__name__.replace("Request", "Form")


class _Untitled(GenerateJsonSchema):
    """Leaves titles out: they repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def body_schemas(config: ServerConfig) -> Json:
    models: set[Any] = {model for bodies in SKILL_BODIES.values() for model in bodies if model is not None}
    models |= {
        chat.ChatCompletionRequest,
        chat.ChatCompletion,
        chat.ChatCompletionChunk,
        chat.ModelList,
        chat.ModelEntry,
        AdapterEntry,
        AdapterList,
        AdapterRequest,
        Error,
        Status,
    }
    _, generated = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    schemas: Json = generated["$defs"]
    for schema in schemas.values():
        del schema["title"]
    _take_docstring(schemas["Metrics"], str(Metrics.__doc__))
    for schema in schemas.values():
        for name, limit in (("max_tokens", config.max_tokens), ("max_completion_tokens", config.max_tokens)):
            _limit(schema, name, maximum=limit)
        _limit(schema, "max_objects", maximum=config.max_objects)
        for name, most in (("question", MAX_QUESTION_CHARACTERS), ("object", MAX_OBJECT_CHARACTERS)):
            _limit(schema, name, minLength=1, maxLength=min(most, config.max_prompt_characters))
    for skill, (request, _, _) in SKILL_BODIES.items():
        schemas[form_name(request)] = _form(request, schemas[request.__name__])
        if skill != "query":
            schemas[request.__name__].setdefault("required", []).append("image_url")
    return schemas


def _limit(schema: Json, name: str, **limits: int) -> None:
    field = schema.get("properties", {}).get(name, {})
    for one in field.get("anyOf", [field]):
        if one.get("type") in ("integer", "string") and "const" not in one:
            one |= limits


def _form(request: type[BaseModel], schema: Json) -> Json:
    """Return the schema of a form from that of JSON: what only JSON can hold is text that is JSON, and null is not."""
    others = form_fields(request).json
    fields: Json = {
        "image": {"type": "string", "format": "binary", "description": "The file; its field may have any name."}
    }
    for name, field in schema["properties"].items():
        inner = {**field.get("anyOf", [field])[0], **{key: value for key, value in field.items() if key != "anyOf"}}
        fields[name] = {"type": "string", "description": "JSON."} if name in others else inner
    del fields["image_url"]
    required = [*schema.get("required", []), *([] if "question" in fields else ["image"])]
    return {"type": "object", "properties": fields, "required": required}


def _take_docstring(schema: Json, text: str) -> None:
    """Describe a dataclass and its fields by its docstring."""
    schema["description"] = text.partition("\n")[0]
    for name, description in re.findall(r"^ +(\w+): (.+)$", text, re.MULTILINE):
        schema["properties"][name]["description"] = description

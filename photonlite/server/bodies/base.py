"""The base of request bodies: a body's model gives its checks, its errors and its OpenAPI schema.

Values are kept as they came: images, which are long texts, are neither copied nor quoted in errors. Validation ends at
the first `HttpError` and the first wrong item of a list: a million errors cost no more than one.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    InstanceOf,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from photonlite.grammar.decoding.choices import MAX_CHOICES
from photonlite.hints import did_you_mean
from photonlite.server.errors import HttpError

Json: TypeAlias = dict[str, Any]
B = TypeVar("B", bound="Body")


class Body(BaseModel):
    """A JSON object. A field that is null counts as left out; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _take_known_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = next((name for name, value in given.items() if value is not None and name not in known), None)
        if unknown is not None:
            hint = did_you_mean(unknown, known)
            message = f"the field {shown(unknown)} is unknown{hint}: the fields are {', '.join(known)}"
            raise HttpError(422, message, code="unknown_field")
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        schema = handler.resolve_ref_schema(handler(core))
        for name, field in schema["properties"].items():
            if name not in schema.get("required", ()):
                schema["properties"][name] = _nullable(field)
        return schema

    @property
    def given(self) -> Json:
        """The fields that were given, by the names that clients use."""
        fields = [(name, field) for name, field in type(self).model_fields.items() if name in self.model_fields_set]
        return {field.alias or name: getattr(self, name) for name, field in fields}


def must_be(what: str) -> WrapValidator:
    """Keep a value of the annotated type as it is; the error for another one says what the field must be."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            validate(value)
        except ValidationError:
            raise PydanticCustomError("must_be", "must be {what}", {"what": what}) from None
        return value

    return WrapValidator(check)


Text = Annotated[InstanceOf[str], must_be("text")]
Texts = Annotated[list[InstanceOf[str]], Field(fail_fast=True), must_be("a list of texts")]
Choices = Annotated[Texts, Field(json_schema_extra={"minItems": 1, "maxItems": MAX_CHOICES})]
Flag = Annotated[bool, must_be("true or false")]
JsonSchema = Annotated[dict[str, Any] | Text, must_be("a JSON Schema: an object, or its text")]
Unit = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


def validate(model: type[B], fields: Mapping[str, Any]) -> B:
    """Check the fields of a body; raises 422 if one is unknown, missing, of another type or cannot be used."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from None


def unusable(message: str) -> HttpError:
    return HttpError(422, message, code="invalid_input")


def shown(value: object) -> str:
    return repr(value[:60] if isinstance(value, str) else value)[:62]


def _refusal(error: ValidationError) -> HttpError:
    first = error.errors(include_url=False, include_input=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
    if first["type"] == "missing":
        return HttpError(422, f"the field {path!r} is missing: it cannot be left out", code="missing_field")
    reason = re.sub("^(Input|List) should", "must", first["msg"]).replace(" after validation", "")
    if first["type"] == "model_type":
        reason = "must be an object"
    return HttpError(422, f"the field {path!r} {reason}", code="invalid_field")


def _nullable(schema: Json) -> Json:
    outer: Json = {name: schema.pop(name) for name in ("default", "description") if name in schema}
    if outer.get("default", ...) is None:
        del outer["default"]
    choices = [one for one in schema.get("anyOf", [schema]) if one != {"type": "null"}]
    return {"anyOf": [*choices, {"type": "null"}], **outer} if choices != [{}] else outer

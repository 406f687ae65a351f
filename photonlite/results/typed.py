"""Boxes and points as fields of typed answers, written by the model's coordinate and size heads.

```python
class Fruit(pydantic.BaseModel):
    name: str
    box: photonlite.Box
```
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

_UNIT_INTERVAL: Any = core_schema.float_schema(ge=0.0, le=1.0, allow_inf_nan=False)


class _SpatialField:
    """Numbers in [0, 1] with a JSON Schema format; the score may be absent from the JSON."""

    _format: ClassVar[str]

    def to_dict(self) -> dict[str, float]:
        """The numbers by name, for JSON."""
        return {name: getattr(self, name) for name in _names(type(self))}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate an object of numbers; Python code may also pass an instance."""
        numbers = {name: core_schema.typed_dict_field(_UNIT_INTERVAL, required=name != "score") for name in _names(cls)}
        from_object = core_schema.no_info_after_validator_function(
            lambda values: cls(**values), core_schema.typed_dict_schema(numbers, extra_behavior="forbid")
        )
        return core_schema.json_or_python_schema(
            json_schema=from_object,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_object]),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_dict),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Name the format: it tells grammars that the model's heads produce the numbers, not its tokens."""
        names = _names(cls)
        return {
            "type": "object",
            "format": cls._format,
            "properties": {name: {"type": "number", "minimum": 0, "maximum": 1} for name in names},
            "required": [name for name in names if name != "score"],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class Box(_SpatialField):
    """A box, normalised to [0, 1] with (0, 0) in the top-left corner of the upright image.

    Attributes:
        x_min: Left edge.
        y_min: Upper edge.
        x_max: Right edge.
        y_max: Lower edge.
        score: Confidence in the location, in (0, 1]; see `photonlite.skills.base.score`.
    """

    x_min: float
    y_min: float
    x_max: float
    y_max: float
    score: float = 1.0

    _format: ClassVar[str] = "box"


@dataclass(frozen=True, slots=True)
class Point(_SpatialField):
    """A point; coordinates and score are those of :class:`Box`.

    Attributes:
        x: From the left.
        y: From the top.
        score: Confidence in the location.
    """

    x: float
    y: float
    score: float = 1.0

    _format: ClassVar[str] = "point"


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]

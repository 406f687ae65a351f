import json
import pickle
from typing import Any

import pydantic
import pytest

from photonlite.results import Box, Point

BOX = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.5, "y_max": 1.0}


class Fruit(pydantic.BaseModel):
    box: Box
    at: Point | None = None


def test_boxes_and_points_are_model_fields_validated_from_objects() -> None:
    fruit = Fruit.model_validate_json(json.dumps({"box": BOX | {"score": 0.25}, "at": {"x": 0, "y": 1}}))

    assert fruit.box == Box(0.1, 0.2, 0.5, 1.0, 0.25)
    assert fruit.at == Point(0.0, 1.0, 1.0)
    assert Fruit.model_validate_json(fruit.model_dump_json()) == fruit
    assert Fruit(box=fruit.box) == Fruit(box=BOX | {"score": 0.25})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "box",
    [
        BOX | {"x_min": -0.1},
        BOX | {"score": 1.5},
        BOX | {"y_max": float("nan")},
        BOX | {"width": 0.3},
        {"x_min": 0.1, "y_min": 0.2, "x_max": 0.5},
        [0.1, 0.2, 0.5, 1.0],
        Point(0.1, 0.2),
    ],
)
def test_boxes_and_points_outside_the_image_are_refused(box: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        pydantic.TypeAdapter(Box).validate_python(box)


def test_json_schemas_of_boxes_and_points_name_their_format() -> None:
    properties = pydantic.TypeAdapter(Fruit).json_schema()["properties"]

    assert (properties["box"]["type"], properties["box"]["format"]) == ("object", "box")
    assert properties["box"]["required"] == ["x_min", "y_min", "x_max", "y_max"]
    assert properties["box"]["properties"]["score"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert properties["at"]["anyOf"][0]["format"] == "point"


def test_boxes_and_points_compare_by_value() -> None:
    box = Box(**BOX)

    assert {box: 1}[Box(**BOX)] == 1
    assert pickle.loads(pickle.dumps(box)) == box
    assert box.to_dict() == BOX | {"score": 1.0}
    with pytest.raises(AttributeError):
        box.x_min = 0.3  # type: ignore[misc]

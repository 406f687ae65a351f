import sys
import types

import pytest

from photonlite import to_coco, to_supervision
from photonlite.errors import ImageError, InputError, MissingDependencyError
from photonlite.results import Caption, Detections, Points, Segments, path_to_polygon

FRAME = {"x_min": 0.1, "y_min": 0.25, "x_max": 0.6, "y_max": 0.75}
SQUARE = "M 0 0 L 1 0 L 1 1 L 0 1 Z"
MUGS = Detections([{**FRAME, "label": "mug", "score": 0.5}] * 2, picture_size=(200, 100))
PENS = Points([{"x": 0.5, "y": 0.5, "label": "pen", "score": 0.5}], picture_size=(40, 30))
RING = Segments(
    [{"path": SQUARE, "bbox": FRAME, "polygon": path_to_polygon(SQUARE, FRAME), "label": "mug", "score": 1.0}],
    picture_size=(20, 10),
)


def test_several_results_are_one_coco_data_set() -> None:
    found = to_coco([PENS, MUGS, RING, Detections([], picture_size=(8, 8))], file_names=["a.png", "b.png", "c", "d"])

    assert found["images"][0] == {"id": 1, "width": 40, "height": 30, "file_name": "a.png"}
    assert [image["id"] for image in found["images"]] == [1, 2, 3, 4]
    assert found["categories"] == [{"id": 1, "name": "pen"}, {"id": 2, "name": "mug"}]
    assert [each["id"] for each in found["annotations"]] == [1, 2, 3, 4]
    assert [each["image_id"] for each in found["annotations"]] == [1, 2, 2, 3]
    assert [each["category_id"] for each in found["annotations"]] == [1, 2, 2, 2]
    assert found["annotations"][1] == MUGS.to_coco(image_id=2, category_ids={"mug": 2}, first_id=2)[0]


def test_an_error_in_a_batch_keeps_the_ids_of_the_others() -> None:
    found = to_coco([MUGS, ImageError("task 1: no image"), PENS])

    assert [image["id"] for image in found["images"]] == [1, 3]
    assert [each["image_id"] for each in found["annotations"]] == [1, 1, 3]
    assert to_coco([]) == {"images": [], "annotations": [], "categories": []}


def test_category_ids_may_be_given() -> None:
    found = to_coco([MUGS, PENS], category_ids={"mug": 7, "pen": 3, "cup": 1})

    assert [each["category_id"] for each in found["annotations"]] == [7, 7, 3]
    assert {"id": 1, "name": "cup"} in found["categories"]
    with pytest.raises(InputError, match="category_ids has no id for the label 'pen'"):
        to_coco([PENS], category_ids={"mug": 1})


def test_values_other_than_lists_of_results_are_refused() -> None:
    with pytest.raises(InputError, match="One result was given"):
        to_coco(MUGS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Result 1 is of type Caption"):
        to_coco([MUGS, Caption("a mug")])  # type: ignore[list-item]
    with pytest.raises(InputError, match="2 results and 1 file names"):
        to_coco([MUGS, PENS], file_names=["a.png"])
    with pytest.raises(InputError, match="size is not known"):
        to_coco([Detections([])])


def test_several_results_share_the_classes_of_supervision(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("supervision")
    monkeypatch.setattr(module, "Detections", types.SimpleNamespace, raising=False)
    monkeypatch.setitem(sys.modules, "supervision", module)

    pens, missing, mugs, ring = to_supervision([PENS, ImageError("gone"), MUGS, RING])

    assert missing is None
    assert [each.class_id.tolist() for each in (pens, mugs, ring)] == [[0], [1, 1], [1]]
    [given] = to_supervision([PENS], class_ids={"pen": 9})
    assert given.class_id.tolist() == [9]
    with pytest.raises(InputError, match="class_ids has no id for the label 'pen'"):
        to_supervision([PENS], class_ids={})


def test_missing_supervision_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match="pip install 'photonlite"):
        to_supervision([PENS])

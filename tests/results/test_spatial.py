import json
import pickle

import numpy as np
import pytest
from PIL import Image

from photonlite import to_coco
from photonlite.errors import InputError
from photonlite.results import Detections, Metrics, Points, Segments


def box(label, score, left=0.0):
    return {"x_min": left, "y_min": 0.25, "x_max": left + 0.5, "y_max": 0.75, "label": label, "score": score}


MUGS = Detections([box("mug", 0.9), box("mug", 0.3, 0.5), box("mug", 0.6, 0.25)], names=("cup", "mug"))


def test_the_list_of_a_result_is_an_attribute():
    assert MUGS.objects is MUGS["objects"]
    assert len(MUGS.objects) == 3
    assert [item.score for item in MUGS.objects[1:]] == [0.3, 0.6]
    assert Points([{"x": 0.5, "y": 0.25}]).points[0].y == 0.25
    assert Segments([{"path": "M 0 0", "bbox": box("", 1)}]).segments[0].bbox.x_max == 0.5


def test_plain_dictionaries_put_into_a_result_get_attributes():
    found = Detections([])
    found["objects"].append(box("pen", 0.5))
    assert found.objects[0].label == "pen"
    assert found["objects"] is found.objects


def test_results_convert_to_arrays():
    assert MUGS.boxes.tolist() == [[0, 0.25, 0.5, 0.75], [0.5, 0.25, 1, 0.75], [0.25, 0.25, 0.75, 0.75]]
    assert MUGS.boxes.dtype == MUGS.scores.dtype == np.float64
    assert MUGS.scores.tolist() == [0.9, 0.3, 0.6]
    assert MUGS.class_ids.tolist() == [1, 1, 1]
    assert Points([{"x": 0.5, "y": 0.25}]).xy.tolist() == [[0.5, 0.25]]
    assert Detections([]).boxes.shape == (0, 4)
    assert Points([]).xy.shape == (0, 2)


def test_filters_keep_the_order_and_what_the_result_is():
    found = MUGS + Detections([box("pen", 0.7)], names=["pen"])
    assert [item.score for item in found.filter(min_score=0.6).objects] == [0.9, 0.6, 0.7]
    assert [item.score for item in found.filter(max=2).objects] == [0.9, 0.7]
    assert [item.score for item in found.filter(max=3).objects] == [0.9, 0.6, 0.7]
    assert [item.score for item in found.filter(labels="mug", max=2).objects] == [0.9, 0.6]
    assert found.filter(labels=["pen", "cup"]).labels == ["pen"]
    assert found.filter(max=0).objects == []
    assert found.filter(labels="pen").class_ids.tolist() == [2]
    assert found.filter(min_score=np.float32(0.5), max=np.int64(1)).scores.tolist() == [0.9]
    assert found.filter() == found
    assert len(found.objects) == 4


@pytest.mark.parametrize("wrong", [{"min_score": 1.5}, {"min_score": "high"}, {"max": -1}, {"max": 1.5}])
def test_a_filter_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is"):
        MUGS.filter(**wrong)


def test_a_sum_has_the_items_and_the_names_of_both():
    more = Detections([box("pen", 0.5), box("mug", 0.4)], names=("pen", "mug"))
    both = MUGS + more
    assert type(both) is Detections
    assert both["objects"] == MUGS["objects"] + more["objects"]
    assert both.names == ("cup", "mug", "pen")
    assert both.class_ids.tolist() == [1, 1, 1, 2, 1]
    assert "class_id" not in both.objects[0]
    assert pickle.loads(pickle.dumps(both)).names == both.names
    assert json.loads(json.dumps(both)) == both


def test_class_ids_of_a_sum_follow_its_names():
    cups = Detections([{**box("cup", 0.5), "class_id": 0}], names=("cup", "mug"))
    pens = Detections([{**box("pen", 0.5), "class_id": 0}, {**box("cup", 0.4), "class_id": 1}], names=("pen", "cup"))
    assert [item.class_id for item in (cups + pens).objects] == (cups + pens).class_ids.tolist() == [0, 2, 0]
    assert pens.objects[0].class_id == 0


def test_a_name_keeps_its_colour_where_others_are_not_found():
    both = Detections([{**box("cup", 0.5), "x_max": 0.375}, box("mug", 0.4, 0.5)], names=("cup", "mug"))

    def colors(result):
        pixels = np.asarray(result.plot(Image.new("RGB", (200, 100)), labels=False))
        return set(map(tuple, pixels.reshape(-1, 3).tolist()))

    cup, mug = (colors(both.filter(labels=label)) for label in ("cup", "mug"))
    assert cup != mug
    assert cup | mug == colors(both)


def test_a_sum_has_the_units_of_its_first_part():
    left, right = Detections([box("mug", 0.9)]), Detections([box("mug", 0.9)]).to_pixels(200, 100)
    assert (left + right).boxes.tolist() == [[0, 0.25, 0.5, 0.75]] * 2
    assert (right + left).boxes.tolist() == [[0, 25, 100, 75]] * 2
    assert (right + left).pixel_size == (200, 100)


def test_a_sum_has_the_cost_of_both_and_the_reason_that_matters():
    first = Detections([], metrics=Metrics(decode_s=0.5, output_tokens=3), finish_reason="stop")
    second = Detections([], metrics=Metrics(decode_s=0.25, output_tokens=4), finish_reason="max_objects")
    assert (first + second).metrics == Metrics(decode_s=0.75, output_tokens=7, requests=2)
    assert (first + second).truncated
    assert (second + first).truncated
    assert (first + MUGS).metrics is None


def test_sums_that_make_no_sense_are_refused():
    with pytest.raises(TypeError):
        _ = MUGS + Points([])
    with pytest.raises(InputError, match="images of"):
        _ = Detections([], picture_size=(4, 3)) + Detections([], picture_size=(3, 4))


def test_names_without_finds_keep_their_ids():
    found = Detections([box("pen", 1.0)], names=("mug", "pen"), picture_size=(40, 30))
    other = Detections([box("cup", 1.0)], names=("cup", "mug"), picture_size=(40, 30))
    assert [each["category_id"] for each in found.to_coco()] == [2]
    both = to_coco([found, other])
    assert both["categories"] == [{"id": 1, "name": "mug"}, {"id": 2, "name": "pen"}, {"id": 3, "name": "cup"}]
    assert [each["category_id"] for each in both["annotations"]] == [2, 3]
    pytest.importorskip("supervision")
    assert found.to_supervision().class_id.tolist() == [1]
    assert found.to_supervision(class_ids={"pen": 9}).class_id.tolist() == [9]

import json
import math
import sys
import types

import numpy as np
import pytest

from photonlite.errors import InputError, MissingDependencyError
from photonlite.results import Detections, Points, Segments, path_to_polygon
from photonlite.results.export import yolo_rows
from photonlite.results.rings import fill_mask

BOX = {"x_min": 0.1, "y_min": 0.25, "x_max": 0.6, "y_max": 0.75, "label": "mug", "score": 0.5}
CIRCLE = "M 1 .5 A .5 .5 0 1 1 0 .5 A .5 .5 0 1 1 1 .5 Z"
HOLE = "M .75 .5 A .25 .25 0 1 0 .25 .5 A .25 .25 0 1 0 .75 .5 Z"


def segment(path, bbox=(0.1, 0.2, 0.6, 0.9), label="ring"):
    box = dict(zip(("x_min", "y_min", "x_max", "y_max"), bbox, strict=True))
    return {"path": path, "bbox": box, "polygon": path_to_polygon(path, box), "label": label, "score": 0.5}


def test_to_pixels_scales_every_coordinate_and_nothing_else():
    assert Detections([BOX]).to_pixels(200, 100) == {
        "objects": [{"x_min": 20.0, "y_min": 25.0, "x_max": 120.0, "y_max": 75.0, "label": "mug", "score": 0.5}]
    }
    assert Points([{"x": 0.5, "y": 0.25, "label": "mug", "score": 1.0}]).to_pixels(200, 100)["points"] == [
        {"x": 100.0, "y": 25.0, "label": "mug", "score": 1.0}
    ]
    item = Segments([segment("M 0 0 L 1 0 L 1 1 Z", (0.1, 0.2, 0.6, 0.9))]).to_pixels(200, 100)["segments"][0]
    assert item["path"] == "M 0 0 L 1 0 L 1 1 Z"
    assert item["bbox"] == pytest.approx({"x_min": 20, "y_min": 20, "x_max": 120, "y_max": 90})
    assert item["polygon"] == [pytest.approx(p) for p in ([20, 20], [120, 20], [120, 90])]


def test_the_size_of_the_image_need_not_be_given_where_it_is_known():
    known = Detections([BOX], picture_size=(200, 100))
    assert known.to_coco() == known.to_coco(200, 100) != known.to_coco(20, 10)
    assert known.to_pixels(20, 10).to_coco()[0]["bbox"] == pytest.approx([2, 2.5, 10, 5])
    assert known.copy().picture_size == (200, 100)
    for given in ({}, {"width": 10}):
        with pytest.raises(InputError, match="both its width and its height"):
            Segments([]).to_coco(**given)


def test_to_pixels_leaves_the_result_alone_and_keeps_type_and_metrics():
    result = Detections([dict(BOX)], finish_reason="stop")
    pixels = result.to_pixels(200, 100)
    assert result == {"objects": [BOX]}
    assert type(pixels) is Detections
    assert (pixels.finish_reason, pixels.pixel_size, result.pixel_size) == ("stop", (200, 100), None)


def test_results_in_pixels_convert_like_normalised_ones():
    result = Segments([segment(CIRCLE)])
    pixels = result.to_pixels(640, 480)
    assert pixels.to_pixels(100, 50)["segments"][0]["bbox"] == pytest.approx(
        result.to_pixels(100, 50)["segments"][0]["bbox"]
    )
    assert np.array_equal(pixels.mask(100, 50), result.mask(100, 50))


@pytest.mark.parametrize("size", [(0, 10), (10, 0), (-1, 10)])
def test_an_image_without_area_is_refused(size):
    for convert in (Detections([BOX]).to_pixels, Detections([BOX]).to_coco, Segments([]).mask):
        with pytest.raises(InputError, match="no area"):
            convert(*size)


def test_mask_area_is_the_analytic_area():
    width, height = 400, 300
    masks = Segments([segment(CIRCLE), segment(CIRCLE + HOLE)]).mask(width, height)
    assert masks.shape == (2, height, width)
    assert masks.dtype == np.bool_
    ellipse = math.pi / 4 * (0.5 * width) * (0.7 * height)
    assert masks[0].sum() == pytest.approx(ellipse, rel=5e-3)
    assert masks[1].sum() == pytest.approx(0.75 * ellipse, rel=5e-3)


def test_mask_lies_where_the_box_is():
    mask = Segments([segment("M0 0H1V1H0Z", (0.25, 0.5, 0.75, 1.0))]).mask(8, 4)[0]
    expected = np.zeros((4, 8), dtype=bool)
    expected[2:4, 2:6] = True
    assert np.array_equal(mask, expected)


def test_mask_of_a_polygon_without_a_path():
    item = segment("M0 0H1V1H0Z", (0.25, 0.5, 0.75, 1.0))
    del item["path"]
    assert Segments([item]).mask(8, 4).sum() == 8
    assert Segments([]).mask(8, 4).shape == (0, 4, 8)


def test_mask_of_a_bad_path_is_a_typed_error():
    with pytest.raises(InputError, match="path"):
        Segments([{**segment(CIRCLE), "path": "M 0"}]).mask(8, 8)


def check_coco(annotations, width, height):
    """What the COCO data format asks of annotations."""
    assert json.loads(json.dumps(annotations)) == annotations
    assert len({annotation["id"] for annotation in annotations}) == len(annotations)
    for annotation in annotations:
        assert {"id", "image_id", "category_id", "bbox", "area", "iscrowd"} <= set(annotation)
        x, y, w, h = annotation["bbox"]
        assert 0 <= x <= x + w <= width + 1e-9
        assert 0 <= y <= y + h <= height + 1e-9
        for polygon in annotation.get("segmentation", []):
            assert len(polygon) >= 6
            assert len(polygon) % 2 == 0
            assert all(-1e-6 <= value <= max(width, height) + 1e-6 for value in polygon)
        if "keypoints" in annotation:
            assert len(annotation["keypoints"]) == 3 * annotation["num_keypoints"]


def test_coco_of_boxes():
    annotations = Detections([BOX, {**BOX, "label": "pen"}]).to_coco(
        200, 100, image_id=7, category_ids={"mug": 47, "pen": 3}, first_id=11
    )
    check_coco(annotations, 200, 100)
    assert [a["id"] for a in annotations] == [11, 12]
    assert [a["category_id"] for a in annotations] == [47, 3]
    assert annotations[0]["image_id"] == 7
    assert annotations[0]["bbox"] == pytest.approx([20, 25, 100, 50])
    assert annotations[0]["area"] == pytest.approx(5000)
    assert annotations[0]["score"] == 0.5


def test_coco_numbers_labels_from_one_without_category_ids_and_refuses_unknown_labels():
    objects = [BOX, {**BOX, "label": "pen"}, BOX]
    assert [a["category_id"] for a in Detections(objects).to_coco(10, 10)] == [1, 2, 1]
    with pytest.raises(InputError, match="'pen'"):
        Detections(objects).to_coco(10, 10, category_ids={"mug": 1})


def test_coco_of_segments_has_polygons_without_holes():
    width, height = 400, 300
    annotations = Segments([segment(CIRCLE + HOLE), segment("M0 0H.2V.2H0ZM.5 .5H1V1H.5Z")]).to_coco(width, height)
    check_coco(annotations, width, height)
    ring, pieces = annotations
    assert [len(a["segmentation"]) for a in annotations] == [1, 2]
    assert ring["area"] == pytest.approx(0.75 * math.pi / 4 * 200 * 210, rel=5e-3)
    assert pieces["area"] == pytest.approx((0.04 + 0.25) * 200 * 210, rel=2e-2)
    assert ring["bbox"] == pytest.approx([40, 60, 200, 210])


def test_coco_of_points_has_keypoints():
    annotations = Points([{"x": 0.5, "y": 0.25, "label": "mug", "score": 0.9}]).to_coco(200, 100)
    check_coco(annotations, 200, 100)
    assert annotations[0]["keypoints"] == [100.0, 25.0, 2]


@pytest.fixture
def supervision(monkeypatch):
    """Stands in for the optional package: keeps what the constructor was given."""
    module = types.ModuleType("supervision")
    module.Detections = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "supervision", module)


@pytest.mark.usefixtures("supervision")
def test_supervision_gets_boxes_scores_and_names():
    detections = Detections([BOX, {**BOX, "label": "pen", "score": 0.25}, BOX]).to_supervision(200, 100)
    assert detections.xyxy.dtype == np.float32
    assert detections.xyxy[0] == pytest.approx([20, 25, 120, 75])
    assert detections.confidence.tolist() == [0.5, 0.25, 0.5]
    assert detections.class_id.tolist() == [0, 1, 0]
    assert detections.data["class_name"].tolist() == ["mug", "pen", "mug"]
    assert detections.mask is None


@pytest.mark.usefixtures("supervision")
def test_supervision_gets_masks_points_and_empty_results():
    segments = Segments([segment(CIRCLE)])
    assert np.array_equal(segments.to_supervision(40, 30).mask, segments.mask(40, 30))
    points = Points([{"x": 0.5, "y": 0.5, "label": "mug", "score": 1.0}], picture_size=(40, 30)).to_supervision()
    assert points.xyxy.tolist() == [[20, 15, 20, 15]]
    assert Detections([]).to_supervision(40, 30).xyxy.shape == (0, 4)


# The package warns when OpenCV is not there either.
@pytest.mark.filterwarnings("ignore:OpenCV:UserWarning")
@pytest.mark.parametrize("result", [Detections([BOX]), Detections([]), Segments([segment(CIRCLE)]), Segments([])])
def test_the_real_supervision_accepts_what_it_gets(result):
    module = pytest.importorskip("supervision")
    detections = result.to_supervision(40, 30)
    assert isinstance(detections, module.Detections)
    assert len(detections) == len(next(iter(result.values())))


def test_missing_supervision_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match="pip install 'photonlite"):
        Detections([BOX]).to_supervision(10, 10)


def test_yolo_rows_are_shares_of_the_image_inside_it():
    boxes = [BOX, {**BOX, "x_min": -0.1, "x_max": 1.1, "label": "pen"}]
    items = Detections(boxes).to_pixels(200, 100)["objects"]
    assert yolo_rows(items, 200, 100, {"mug": 0, "pen": 1}) == [
        "0 0.350000 0.500000 0.500000 0.500000\n",
        "1 0.500000 0.500000 1.000000 0.500000\n",
    ]


def test_yolo_has_one_outline_for_a_segment_of_several_parts_and_none_for_a_segment_without():
    parts = "M 0 0 L .3 0 .3 1 0 1 Z M .7 0 L 1 0 1 1 .7 1 Z"
    empty = {**segment(parts), "path": "", "polygon": []}
    items = Segments([segment(parts, (0, 0, 1, 1)), empty]).to_pixels(200, 100)["segments"]
    [row] = yolo_rows(items, 200, 100, {"ring": 7})
    number, *values = row.split()
    outline = [(200 * float(x), 100 * float(y)) for x, y in zip(values[::2], values[1::2], strict=True)]
    assert number == "7"
    assert np.array_equal(fill_mask([outline], 200, 100), Segments([segment(parts, (0, 0, 1, 1))]).mask(200, 100)[0])

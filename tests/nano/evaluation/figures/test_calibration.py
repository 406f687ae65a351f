"""Calibration: scores against right boxes, over all scenes and by shift."""

import pytest
from PIL import Image

from bench.nano.evaluation.figures.calibration import calibration_figures, draw_reliability
from bench.nano.evaluation.records import PlaceRecord, SceneRecord

BOX, OTHER = (0.1, 0.1, 0.3, 0.3), (0.6, 0.6, 0.9, 0.9)


def asked(truth, answers, scores, **reference):
    return PlaceRecord(0, "name", "cat", truth, answers, scores, **reference)


def scene(*questions, background="wood", **shown):
    return SceneRecord(0, background, 100, 100, detections=list(questions), **shown)


def test_sure_mistakes_are_errors_and_unsure_ones_are_not():
    sure = calibration_figures([scene(asked([BOX], [BOX, OTHER], [1.0, 1.0]))])
    assert (sure["error"], sure["mean_score"], sure["right"]) == (0.5, 1.0, 0.5)
    unsure = calibration_figures([scene(asked([BOX], [BOX, OTHER], [1.0, 0.0]))])
    assert unsure["error"] == 0
    assert {row["boxes"] for row in unsure["by_score"].values()} == {1}


def test_boxes_of_what_is_absent_are_wrong_and_marked_ones_are_left_out():
    assert calibration_figures([scene(asked([], [BOX], [0.9]))])["error"] == pytest.approx(0.9)
    marked = scene(asked([BOX], [BOX], [0.9], reference=BOX), asked([BOX], [BOX], [1.0]))
    assert calibration_figures([marked])["error"] == 0


def test_shifts_are_judged_apart():
    crowd = scene(asked([BOX] * 11, [BOX], [1.0]), background="bricks", objects=11, cluttered=True)
    shifts = calibration_figures([scene(asked([BOX], [OTHER], [1.0])), crowd])["by_shift"]
    assert {name: row["error"] for name, row in shifts.items()} == {
        "all of the domain": 1,
        "all never trained": 0,
        "1 to 10 objects": 1,
        "11 to 25 objects": 0,
        "words and drawings": 0,
    }


def test_the_drawing_is_an_image(tmp_path):
    draw_reliability([scene(asked([BOX], [BOX, OTHER], [0.9, 0.2]))], tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert min(image.size) > 300
